#include "magnitude/session.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "magnitude/client.h"

namespace magnitude {

namespace {

// A message of a state holds so much at most.
constexpr std::size_t CHUNK_BYTES = 1 << 20;
// Save takes so much in one message; more goes in a stream.
constexpr std::size_t AGENT_STATE_BYTES_MAX = 4 << 20;

CallError damaged(const std::string& what) {
  return CallError(grpc::Status(grpc::StatusCode::DATA_LOSS, "The state is damaged: " + what + "."));
}

// CRC-32C of each byte, with its bits reflected: the polynomial is 1EDC6F41.
std::array<std::uint32_t, 256> crc32c_table() {
  std::array<std::uint32_t, 256> table;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; ++bit) table[byte] = (table[byte] >> 1) ^ (table[byte] & 1 ? 0x82f63b78 : 0);
  }
  return table;
}

std::uint32_t crc32c(const std::string& bytes) {
  static const auto table = crc32c_table();
  std::uint32_t sum = ~0u;
  for (const unsigned char byte : bytes) sum = table[(sum ^ byte) & 0xff] ^ (sum >> 8);
  return ~sum;
}

std::string sha256(const std::string& bytes) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

// Appends a chunk, if it comes in its place and whole.
void add(std::string& bytes, const v1::StateChunk& chunk) {
  if (chunk.offset_bytes() != bytes.size() || crc32c(chunk.content()) != chunk.crc32c()) {
    throw damaged("the chunk at " + std::to_string(chunk.offset_bytes()) + " is wrong");
  }
  bytes += chunk.content();
}

// Holds bytes against what was sent of them.
void compare(const std::string& bytes, std::uint64_t length, const std::string& hash) {
  if (bytes.size() != length) throw damaged("its sizes are wrong");
  if (length > 0 && sha256(bytes) != hash) throw damaged("its hashes are wrong");
}

// Writes bytes as chunks, each into the part that `chunk_of` picks. False if the server takes no more.
template <typename ChunkOf>
bool write(grpc::ClientWriter<v1::ImportStateRequest>& writer, const std::string& bytes, ChunkOf chunk_of) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += CHUNK_BYTES) {
    v1::ImportStateRequest request;
    v1::StateChunk& chunk = *chunk_of(request);
    chunk.set_offset_bytes(begin);
    chunk.set_content(bytes.substr(begin, CHUNK_BYTES));
    chunk.set_crc32c(crc32c(chunk.content()));
    if (!writer.Write(request)) return false;
  }
  return true;
}

}  // namespace

Session::Session(Client& client, std::string id) : id(std::move(id)), client_(client) {}

v1::InferRequest Session::in(v1::InferRequest request) const {
  request.set_session_id(id);
  return request;
}

v1::Snapshot Session::save(const std::optional<std::string>& agent_state) {
  if (agent_state && agent_state->size() > AGENT_STATE_BYTES_MAX) {
    v1::ImportStateHeader header;
    header.set_live_session_id(id);
    return send(header, *agent_state, "");
  }
  v1::SaveRequest request;
  v1::SaveResponse answer;
  request.set_session_id(id);
  if (agent_state) request.set_agent_state(*agent_state);
  client_.change([&](auto& context) { return client_.snapshots->Save(&context, request, &answer); });
  return answer.snapshot();
}

v1::RestoreResponse Session::restore() {
  v1::RestoreRequest request;
  v1::RestoreResponse answer;
  request.mutable_snapshot()->set_session_id(id);
  check(client_.snapshots->Restore(client_.context().get(), request, &answer));
  return answer;
}

v1::DeleteResponse Session::remove() {
  v1::DeleteRequest request;
  v1::DeleteResponse answer;
  request.set_session_id(id);
  client_.change([&](auto& context) { return client_.snapshots->Delete(&context, request, &answer); });
  return answer;
}

State Session::export_state() {
  v1::ExportStateRequest request;
  request.mutable_snapshot()->set_session_id(id);
  const auto context = client_.context();
  const auto reader = client_.snapshots->ExportState(context.get(), request);
  State state;
  v1::StateEnd end;
  bool ended = false;
  for (v1::ExportStateResponse part; reader->Read(&part);) {
    if (part.has_header()) state.header = part.header();
    if (part.has_agent_state()) add(state.agent_state, part.agent_state());
    if (part.has_key_value()) add(state.key_value, part.key_value());
    if (part.has_end()) {
      end = part.end();
      ended = true;
    }
  }
  check(reader->Finish());
  if (!ended) throw damaged("it ended too soon");
  compare(state.agent_state, end.agent_state_bytes(), end.agent_state_sha256());
  compare(state.key_value, end.key_value_bytes(), end.key_value_sha256());
  return state;
}

v1::Snapshot Session::import_state(const State& state) {
  v1::ImportStateHeader header;
  header.set_session_id(id);
  *header.mutable_state() = state.header;
  return send(header, state.agent_state, state.key_value);
}

v1::Snapshot Session::send(const v1::ImportStateHeader& header, const std::string& agent_state,
                           const std::string& key_value) {
  v1::ImportStateRequest first, last;
  *first.mutable_header() = header;
  auto& end = *last.mutable_end();
  end.set_agent_state_bytes(agent_state.size());
  end.set_agent_state_sha256(sha256(agent_state));
  end.set_key_value_bytes(key_value.size());
  end.set_key_value_sha256(sha256(key_value));
  v1::ImportStateResponse answer;
  client_.change([&](auto& context) {
    const auto writer = client_.snapshots->ImportState(&context, &answer);
    // Where the server takes no more, its status says why.
    if (writer->Write(first) &&
        write(*writer, agent_state, [](auto& request) { return request.mutable_agent_state(); }) &&
        write(*writer, key_value, [](auto& request) { return request.mutable_key_value(); }) && writer->Write(last)) {
      writer->WritesDone();
    }
    return writer->Finish();
  });
  return answer.snapshot();
}

}  // namespace magnitude
