#include "client/c/launch/nodes.h"

#include <stdlib.h>
#include <string.h>

#include <vector>

#include "client/c/error.h"
#include "client/c/launch/helper.h"
#include "client/c/launch/socket_exchange.h"

namespace ringd::client {
namespace {

constexpr size_t kAnswerBytes = 16384;  // An invitation has two certificates and a key.

int32_t FirstRank(const Launch& launch) { return launch.place.rank - launch.place.local_rank; }

std::string InvitationKey(int32_t rank) { return "invitation/" + std::to_string(rank); }
std::string SizeKey(int32_t rank) { return "size/" + std::to_string(rank); }

// Rank 0's node: learns the others' sizes, starts the scheduler, and invites them.
int StartHost(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  std::string slots;
  std::vector<int32_t> nodes;
  for (int32_t rank = launch.place.local_size; rank < launch.place.size;) {
    std::string size;
    if (const int code = exchange.Get(SizeKey(rank), rank, &size); code != RINGD_OK) return code;
    slots += (nodes.empty() ? "" : ",") + size;
    nodes.push_back(rank);
    const int32_t count = atoi(size.c_str());
    if (count < 1)
      return FailFormat(Code::kInternal, "rank %d's node has '%s' ranks", rank, size.c_str());
    rank += count;
  }
  HelperAnswer answer;
  const int code =
      StartHelper(launch, {{"host", launch.meeting_host, slots}, ""}, timeout_us, &answer);
  const std::string why = LastError().message;
  std::string& output = answer.output;
  for (const int32_t rank : nodes) {
    const size_t end = output.find('\n');
    // Empty: what has happened is known on node 0, and told there.
    const std::string line = end == std::string::npos ? "" : output.substr(0, end);
    output.erase(0, end == std::string::npos ? end : end + 1);
    if (const int put = exchange.Put(InvitationKey(rank), line); put != RINGD_OK) return put;
  }
  return code == RINGD_OK ? code : Fail(static_cast<Code>(code), why);
}

int StartGuest(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  const int32_t first = FirstRank(launch);
  const std::string size = std::to_string(launch.place.local_size);
  if (const int code = exchange.Put(SizeKey(first), size); code != RINGD_OK) return code;
  std::string line;
  if (const int code = exchange.Get(InvitationKey(first), 0, &line); code != RINGD_OK) return code;
  if (line.empty()) {
    return Fail(Code::kUnavailable,
                "ringd has not started on the node of rank 0: rank 0's error says why");
  }
  HelperAnswer answer;
  return StartHelper(launch, {{"guest"}, line + "\n"}, timeout_us, &answer);
}

int StartWith(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  return FirstRank(launch) == 0 ? StartHost(launch, exchange, timeout_us)
                                : StartGuest(launch, exchange, timeout_us);
}

int StartPrivate(const Launch& launch, const Exchange& exchange, int64_t timeout_us,
                 std::string why) {
  if (exchange.call != nullptr) return StartWith(launch, exchange, timeout_us);
  const bool torchrun = launch.launcher == "torchrun";
  if (!torchrun && launch.meeting_port != 0) {
    SocketExchange sockets({.job = launch.job,
                            .host = launch.meeting_host,
                            .port = launch.meeting_port,
                            .is_host = FirstRank(launch) == 0,
                            .timeout_us = timeout_us});
    return StartWith(launch, sockets.exchange(), timeout_us);
  }
  while (!why.empty() && why.back() == '\n') why.pop_back();
  return FailFormat(Code::kUnavailable,
                    "only %d of the job's %d ranks are on this node, and nothing connects the "
                    "nodes: start ringd on all of them and name their scheduler, by "
                    "RINGD_SCHEDULER or in ringd.toml (here: %s); or %s",
                    launch.place.local_size, launch.place.size, why.c_str(),
                    torchrun ? "use ringd in a Python program, which has torchrun's store"
                             : "give all ranks MASTER_ADDR, the machine of rank 0, and a free "
                               "MASTER_PORT (mpirun -x MASTER_ADDR -x MASTER_PORT)");
}

}  // namespace

int Exchange::Put(const std::string& key, const std::string& text) const {
  char answer[kAnswerBytes] = "";
  if (call(context, key.c_str(), text.c_str(), answer, sizeof(answer)) == 0) return RINGD_OK;
  return FailFormat(Code::kUnavailable, "telling the other nodes '%s': %s", key.c_str(), answer);
}

int Exchange::Get(const std::string& key, int32_t rank, std::string* text) const {
  char answer[kAnswerBytes] = "";
  const bool good = call(context, key.c_str(), nullptr, answer, sizeof(answer)) == 0;
  *text = std::string(answer, strnlen(answer, sizeof(answer)));
  if (good) return RINGD_OK;
  return FailFormat(
      Code::kDeadlineExceeded,
      "the node of rank %d has not come: do all ranks there call init(), and reach "
      "MASTER_ADDR? Do ranks fill one node after the other (mpirun --map-by slot, srun "
      "--distribution=block)? init(timeout=...) waits longer (%s)",
      rank, text->c_str());
}

int StartNode(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  HelperAnswer answer;
  int code = StartHelper(launch, {}, timeout_us, &answer);
  if (code == RINGD_OK && answer.found_none) {
    code = StartPrivate(launch, exchange, timeout_us, answer.output);
  }
  if (code == RINGD_OK || launch.nodes == 1 || launch.place.local_size == 1) return code;
  const std::string why = LastError().message;
  (void)StartHelper(launch, {{"refuse"}, why}, timeout_us, &answer);
  return Fail(static_cast<Code>(code), why);
}

}  // namespace ringd::client
