#pragma once

#include <optional>
#include <string>

#include "magnitude/v1/inference.pb.h"
#include "magnitude/v1/snapshot.pb.h"

namespace magnitude {

class Client;

// A version of a session, whole: to be kept, or to be brought to another server.
struct State {
  v1::StateHeader header;
  // The application's own bytes.
  std::string agent_state;
  // The pages; none where they were not kept.
  std::string key_value;
};

// What the server keeps under a name: tokens, their key/value cache, and bytes of the application's own. What fails
// throws CallError. It must not outlive its client.
class Session {
 public:
  const std::string id;

  // Makes a request one of the session: what it holds is put behind what the session has already.
  v1::InferRequest in(v1::InferRequest request) const;
  // Makes a new version of the session, with bytes of any length; without any it keeps those of the parent version.
  v1::Snapshot save(const std::optional<std::string>& agent_state = std::nullopt);
  // Brings the latest version back.
  v1::RestoreResponse restore();
  // Deletes all versions, and ends the session.
  v1::DeleteResponse remove();
  // Fetches the latest version. Every byte is checked; what is damaged is an error of DATA_LOSS.
  State export_state();
  // Saves a state as the session's next version. The session need not be live.
  v1::Snapshot import_state(const State& state);

 private:
  friend class Client;
  Session(Client& client, std::string id);
  v1::Snapshot send(const v1::ImportStateHeader& header, const std::string& agent_state, const std::string& key_value);

  Client& client_;
};

}  // namespace magnitude
