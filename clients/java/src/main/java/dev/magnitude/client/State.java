package dev.magnitude.client;

import com.google.protobuf.ByteString;
import dev.magnitude.v1.StateChunk;
import dev.magnitude.v1.StateEnd;
import dev.magnitude.v1.StateHeader;
import io.grpc.Status;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * A version of a session, whole: to be kept, or to be brought to another server.
 *
 * @param header what it is; null with bytes of the application's own alone
 * @param agentState the application's own bytes
 * @param keyValue the pages; none where they were not kept
 */
public record State(StateHeader header, ByteString agentState, ByteString keyValue) {
  /** A message of a state holds so much at most. */
  private static final int CHUNK_BYTES = 1 << 20;

  /** What the state must come to. */
  StateEnd end() {
    return StateEnd.newBuilder()
        .setAgentStateBytes(agentState.size())
        .setAgentStateSha256(sha256(agentState))
        .setKeyValueBytes(keyValue.size())
        .setKeyValueSha256(sha256(keyValue))
        .build();
  }

  /** Returns the state if it is what was sent. */
  State checked(StateEnd sent) {
    var found = end();
    if (found.getAgentStateBytes() != sent.getAgentStateBytes()
        || found.getKeyValueBytes() != sent.getKeyValueBytes()) {
      throw damaged("its sizes are wrong");
    }
    if (!agentState.isEmpty() && !found.getAgentStateSha256().equals(sent.getAgentStateSha256())
        || !keyValue.isEmpty() && !found.getKeyValueSha256().equals(sent.getKeyValueSha256())) {
      throw damaged("its hashes are wrong");
    }
    return this;
  }

  /** The bytes in order, as messages of the wire that share them. */
  static List<StateChunk> chunks(ByteString bytes) {
    var chunks = new ArrayList<StateChunk>();
    for (var begin = 0; begin < bytes.size(); begin += CHUNK_BYTES) {
      var content = bytes.substring(begin, Math.min(begin + CHUNK_BYTES, bytes.size()));
      chunks.add(StateChunk.newBuilder().setOffsetBytes(begin).setContent(content).setCrc32C(crc32c(content)).build());
    }
    return chunks;
  }

  /** Appends a chunk, if it comes in its place and whole. */
  static ByteString add(ByteString bytes, StateChunk chunk) {
    if (chunk.getOffsetBytes() != bytes.size() || crc32c(chunk.getContent()) != chunk.getCrc32C()) {
      throw damaged("the chunk at " + chunk.getOffsetBytes() + " is wrong");
    }
    return bytes.concat(chunk.getContent());
  }

  static CallException damaged(String what) {
    var status = Status.DATA_LOSS.withDescription("The state is damaged: " + what + ".");
    return new CallException(status.asRuntimeException());
  }

  private static int crc32c(ByteString bytes) {
    var sum = new CRC32C();
    sum.update(bytes.asReadOnlyByteBuffer());
    return (int) sum.getValue();
  }

  private static ByteString sha256(ByteString bytes) {
    try {
      var hash = MessageDigest.getInstance("SHA-256");
      hash.update(bytes.asReadOnlyByteBuffer());
      return ByteString.copyFrom(hash.digest());
    } catch (NoSuchAlgorithmException impossible) {
      throw new AssertionError("every Java has SHA-256", impossible);
    }
  }
}
