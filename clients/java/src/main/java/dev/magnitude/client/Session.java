package dev.magnitude.client;

import com.google.protobuf.ByteString;
import dev.magnitude.v1.DeleteRequest;
import dev.magnitude.v1.DeleteResponse;
import dev.magnitude.v1.ExportStateRequest;
import dev.magnitude.v1.ExportStateResponse;
import dev.magnitude.v1.ImportStateHeader;
import dev.magnitude.v1.ImportStateRequest;
import dev.magnitude.v1.ImportStateResponse;
import dev.magnitude.v1.InferRequest;
import dev.magnitude.v1.RestoreRequest;
import dev.magnitude.v1.RestoreResponse;
import dev.magnitude.v1.SaveRequest;
import dev.magnitude.v1.Snapshot;
import dev.magnitude.v1.SnapshotReference;
import dev.magnitude.v1.StateChunk;
import dev.magnitude.v1.StateHeader;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;

/** What the server keeps under a name: tokens, their key/value cache, and bytes of the application's own. */
public final class Session {
  /** A save takes so much in one message; more goes in a stream. */
  private static final int AGENT_STATE_BYTES_MAX = 4 << 20;

  private final Client client;
  private final String id;

  Session(Client client, String id) {
    this.client = client;
    this.id = id;
  }

  /** Its name. */
  public String id() {
    return id;
  }

  /** Makes a request one of the session: what it holds is put behind what the session has already. */
  public InferRequest in(InferRequest request) {
    return request.toBuilder().setSessionId(id).build();
  }

  /** Makes a new version of the session, with the application's bytes of the parent version. */
  public Snapshot save() {
    return save(SaveRequest.newBuilder());
  }

  /** Makes a new version of the session, with bytes of any length. */
  public Snapshot save(ByteString agentState) {
    if (agentState.size() <= AGENT_STATE_BYTES_MAX) {
      return save(SaveRequest.newBuilder().setAgentState(agentState));
    }
    return send(ImportStateHeader.newBuilder().setLiveSessionId(id), new State(null, agentState, ByteString.EMPTY));
  }

  /** Brings the latest version back. */
  public RestoreResponse restore() {
    return client.call(() -> client.snapshots().restore(RestoreRequest.newBuilder().setSnapshot(latest()).build()));
  }

  /** Deletes all versions, and ends the session. */
  public DeleteResponse delete() {
    return client.change(client.snapshots(), stub -> stub.delete(DeleteRequest.newBuilder().setSessionId(id).build()));
  }

  /** Fetches the latest version. Every byte is checked; what is damaged is an error of DATA_LOSS. */
  public State exportState() {
    var call = client.streamingSnapshots().exportState(ExportStateRequest.newBuilder().setSnapshot(latest()).build());
    try {
      return received(call);
    } catch (StatusException failure) {
      throw new CallException(failure);
    } catch (InterruptedException stopped) {
      throw Retry.interrupted();
    } finally {
      call.cancel("no longer read", null);
    }
  }

  /** Saves a state as the session's next version. The session need not be live. */
  public Snapshot importState(State state) {
    return send(ImportStateHeader.newBuilder().setSessionId(id).setState(state.header()), state);
  }

  private Snapshot save(SaveRequest.Builder request) {
    return client.change(client.snapshots(), stub -> stub.save(request.setSessionId(id).build())).getSnapshot();
  }

  private SnapshotReference latest() {
    return SnapshotReference.newBuilder().setSessionId(id).build();
  }

  private static State received(BlockingClientCall<?, ExportStateResponse> call)
      throws InterruptedException, StatusException {
    StateHeader header = null;
    var agentState = ByteString.EMPTY;
    var keyValue = ByteString.EMPTY;
    for (ExportStateResponse part; (part = call.read()) != null; ) {
      switch (part.getPartCase()) {
        case HEADER -> header = part.getHeader();
        case AGENT_STATE -> agentState = State.add(agentState, part.getAgentState());
        case KEY_VALUE -> keyValue = State.add(keyValue, part.getKeyValue());
        case END -> {
          return new State(header, agentState, keyValue).checked(part.getEnd());
        }
        default -> {}
      }
    }
    throw State.damaged("it ended too soon");
  }

  private Snapshot send(ImportStateHeader.Builder header, State state) {
    return client.change(client.streamingSnapshots(), stub -> send(stub.importState(), header, state));
  }

  private static Snapshot send(
      BlockingClientCall<ImportStateRequest, ImportStateResponse> call, ImportStateHeader.Builder header, State state) {
    try {
      var open = call.write(ImportStateRequest.newBuilder().setHeader(header).build());
      for (StateChunk chunk : State.chunks(state.agentState())) {
        open = open && call.write(ImportStateRequest.newBuilder().setAgentState(chunk).build());
      }
      for (StateChunk chunk : State.chunks(state.keyValue())) {
        open = open && call.write(ImportStateRequest.newBuilder().setKeyValue(chunk).build());
      }
      if (open) { // or else it was refused, and the answer says why
        call.write(ImportStateRequest.newBuilder().setEnd(state.end()).build());
        call.halfClose();
      }
      ImportStateResponse answer = call.read();
      return answer.getSnapshot();
    } catch (StatusException failure) {
      throw new CallException(failure);
    } catch (InterruptedException stopped) {
      throw Retry.interrupted();
    } finally {
      call.cancel("over", null);
    }
  }
}
