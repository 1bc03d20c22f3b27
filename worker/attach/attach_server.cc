#include "worker/attach/attach_server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/session/codes.h"
#include "common/base/futex.h"
#include "common/base/unix_socket.h"
#include "common/process/exit_text.h"
#include "worker/process/foreign_process.h"

namespace ringd::worker {
namespace {

constexpr size_t kMaxStrangers = 1024;  // Ranks of a node say hello at once.
constexpr size_t kMaxErrorBytes = 700;  // A Refusal's text has room for them and a sentence.
constexpr int kPollMillis = 100;
constexpr int64_t kHelloMicros = 1'000'000;  // It is sent right after the connection was made.
constexpr absl::Duration kCommandPatience = absl::Seconds(2);
constexpr int kExitFailure = 1;

void Refuse(int socket, absl::StatusCode code, const std::string& text, pid_t pid = 0) {
  attach::Refusal refusal{};
  refusal.header = {attach::Kind::kRefusal, attach::kVersion};
  refusal.code = static_cast<uint32_t>(session::ToCode(absl::Status(code, text)));
  refusal.pid = pid;
  session::FillText(text, refusal.text, sizeof(refusal.text));
  (void)SendPacket(socket, &refusal, sizeof(refusal), nullptr, 0);
}

std::string Describe(const attach::Place& place) {
  return absl::StrCat("rank ", place.rank, " of ", place.size, " (local rank ", place.local_rank,
                      " of ", place.local_size, ")");
}

bool IsReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return fd >= 0 && poll(&entry, 1, 0) > 0;
}

}  // namespace

void RefuseRanks(const UniqueFd& listener, int count, absl::Duration timeout,
                 const std::string& text) {
  const int64_t deadline_us = MonotonicMicros() + absl::ToInt64Microseconds(timeout);
  while (count > 0) {
    const int64_t left_us = deadline_us - MonotonicMicros();
    pollfd entry{listener.get(), POLLIN, 0};
    if (left_us <= 0) return;
    if (poll(&entry, 1, static_cast<int>(left_us / 1000) + 1) <= 0) continue;
    const UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    PeerCredentials peer;
    if (GetPeerCredentials(socket.get(), &peer) < 0 || peer.uid != geteuid()) continue;
    // Its hello first: a socket that is closed with something unread resets the other end.
    alignas(8) std::byte packet[sizeof(attach::StandInHello)];
    if (ReceivePacket(socket.get(), packet, sizeof(packet), nullptr, kHelloMicros) <= 0) continue;
    Refuse(socket.get(), absl::StatusCode::kUnavailable, text);
    --count;
  }
}

AttachServer::AttachServer(Options options)
    : listener_(std::move(options.listener)),
      size_(options.size),
      local_size_(options.local_size),
      timeout_(options.timeout),
      start_us_(MonotonicMicros()),
      command_(std::move(options.command)),
      command_errors_(std::move(options.command_errors)) {}

void AttachServer::Run() {
  while (!over_) {
    PollOnce();
    // Ends first: a new job's ranks must not meet those of the one before.
    for (auto& [number, rank] : ranks_) {
      if (!rank.ended && HasEnded(rank.pidfd.get())) OnClientEnded(&rank);
    }
    ReadCommandErrors();
    CheckCommand();
    for (auto& [number, rank] : ranks_) {
      if (!rank.ended && IsReadable(rank.client.get())) ReadClient(&rank);
    }
    std::vector<int> speaking;
    for (const auto& [socket, owner] : strangers_) {
      if (IsReadable(socket)) speaking.push_back(socket);
    }
    for (const int socket : speaking) ReadStranger(socket);
    Accept();
    CheckTimeout();
  }
}

void AttachServer::PollOnce() {
  std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}, {command_.pidfd.get(), POLLIN, 0}};
  if (command_errors_.valid()) entries.push_back({command_errors_.get(), POLLIN, 0});
  for (const auto& [socket, owner] : strangers_) entries.push_back({socket, POLLIN, 0});
  for (const auto& [number, rank] : ranks_) {
    if (rank.ended) continue;
    if (rank.pidfd.valid()) entries.push_back({rank.pidfd.get(), POLLIN, 0});
    if (rank.client.valid()) entries.push_back({rank.client.get(), POLLIN, 0});
  }
  poll(entries.data(), entries.size(), placed_ ? -1 : kPollMillis);
}

void AttachServer::Accept() {
  while (strangers_.size() < kMaxStrangers) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    PeerCredentials peer;
    if (GetPeerCredentials(socket.get(), &peer) < 0 || peer.uid != geteuid()) continue;
    const int number = socket.get();
    strangers_[number] = std::move(socket);
  }
}

void AttachServer::ReadStranger(int number) {
  UniqueFd socket = std::move(strangers_[number]);
  strangers_.erase(number);
  alignas(8) std::byte packet[sizeof(attach::StandInHello)];
  const ssize_t bytes = ReceivePacket(socket.get(), packet, sizeof(packet), nullptr, -1);
  if (bytes < static_cast<ssize_t>(sizeof(attach::Header))) return;
  const auto& header = *reinterpret_cast<const attach::Header*>(packet);
  if (header.kind == attach::Kind::kRankHello && bytes == sizeof(attach::RankHello)) {
    OnRankHello(std::move(socket), *reinterpret_cast<const attach::RankHello*>(packet));
  } else if (header.kind == attach::Kind::kStandInHello && bytes == sizeof(attach::StandInHello)) {
    OnStandInHello(std::move(socket), *reinterpret_cast<const attach::StandInHello*>(packet));
  }
}

absl::Status AttachServer::CheckHello(const attach::RankHello& hello) const {
  const attach::Place& place = hello.place;
  if (hello.header.version != attach::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", place.rank, " speaks version ", hello.header.version,
                     " of the attach protocol, ringd-worker version ", attach::kVersion,
                     "; install the same ringd for all ranks"));
  }
  if (place.size != size_ || place.local_size != local_size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ranks' sizes differ: ", Describe(place), " has joined a job of ", size_, " ranks, ",
        local_size_, " of them on this node: start all ranks by one command of the launcher"));
  }
  if (place.rank < 0 || place.rank >= size_ || place.local_rank < 0 ||
      place.local_rank >= local_size_) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(place), " can't be"));
  }
  for (const auto& [number, rank] : ranks_) {
    if (rank.pid != 0 && number != place.rank && rank.place.local_rank == place.local_rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(place), " and ", Describe(rank.place),
                       " are on one node: start all ranks by one command of the launcher"));
    }
  }
  return absl::OkStatus();
}

void AttachServer::OnRankHello(UniqueFd socket, const attach::RankHello& hello) {
  if (failed_) return;  // It tries again, and finds the next job's.
  if (const absl::Status status = CheckHello(hello); !status.ok()) {
    return Refuse(socket.get(), status.code(), std::string(status.message()));
  }
  Rank& rank = ranks_[hello.place.rank];
  if (rank.ended) return;
  if (rank.pid != 0) {
    return Refuse(socket.get(), absl::StatusCode::kUnavailable,
                  absl::StrCat("process ", rank.pid, " is rank ", hello.place.rank,
                               " already: init() is for the process that the launcher started, "
                               "not for its children"),
                  rank.pid);
  }
  PeerCredentials peer;
  if (GetPeerCredentials(socket.get(), &peer) < 0) return;
  rank.pidfd = OpenPeerPidfd(socket.get(), peer.pid);
  if (!rank.pidfd.valid()) return;
  rank.pid = peer.pid;
  rank.place = hello.place;
  rank.client = std::move(socket);
  PlaceClients();
}

void AttachServer::OnStandInHello(UniqueFd socket, const attach::StandInHello& hello) {
  Rank& rank = ranks_[hello.place.rank];
  rank.stand_in = std::move(socket);
  rank.ringds = hello.place;
  rank.worker_socket = session::ReadText(hello.worker_socket, sizeof(hello.worker_socket));
  if (rank.ended) {
    (void)SendPacket(rank.stand_in.get(), &rank.end, sizeof(rank.end), nullptr, 0);
  } else if (failed_) {
    EndRank(&rank, kExitFailure, 0, "");
  } else {
    PlaceClients();
  }
}

void AttachServer::PlaceClients() {
  int32_t ready = 0;
  for (auto& [number, rank] : ranks_) {
    if (rank.pid == 0 || !rank.stand_in.valid()) continue;
    ++ready;
    if (rank.place == rank.ringds) continue;
    return Fail(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("the launcher's ", Describe(rank.place), " is ringd's ", Describe(rank.ringds),
                     ": ringd fills one node after the other; have the launcher do so, too "
                     "(mpirun --map-by slot, srun --distribution=block)"));
  }
  if (ready < local_size_) return;
  placed_ = true;
  for (auto& [number, rank] : ranks_) Place(&rank);
}

void AttachServer::Place(Rank* rank) {
  rank->said_goodbye = false;
  attach::RankPlace place{};
  place.header = {attach::Kind::kRankPlace, attach::kVersion};
  session::FillText(rank->worker_socket, place.worker_socket, sizeof(place.worker_socket));
  (void)SendPacket(rank->client.get(), &place, sizeof(place), nullptr, 0);
}

void AttachServer::ReadClient(Rank* rank) {
  alignas(8) std::byte packet[sizeof(attach::RankHello)];
  const ssize_t bytes = ReceivePacket(rank->client.get(), packet, sizeof(packet), nullptr, -1);
  if (bytes == -EAGAIN) return;
  const auto& header = *reinterpret_cast<const attach::Header*>(packet);
  if (bytes == sizeof(attach::RankGoodbye) && header.kind == attach::Kind::kRankGoodbye) {
    rank->said_goodbye = true;
  } else if (bytes == sizeof(attach::RankHello) && header.kind == attach::Kind::kRankHello &&
             placed_) {
    Place(rank);
  } else {
    rank->client.reset();  // Its end, if it is that, shows by its pidfd.
  }
}

void AttachServer::OnClientEnded(Rank* rank) {
  const int32_t number = rank->place.rank;
  // Its last word, if it had one.
  while (rank->client.valid() && IsReadable(rank->client.get())) ReadClient(rank);
  const std::optional<int> status = FindWaitStatus(rank->pidfd.get(), rank->pid);
  if (status.has_value() && WIFSIGNALED(*status)) {
    EndRank(rank, 0, WTERMSIG(*status), "");
  } else if (status.has_value()) {
    EndRank(rank, WEXITSTATUS(*status), 0, "");
  } else if (rank->said_goodbye) {
    EndRank(rank, 0, 0, "");
  } else {
    EndRank(rank, kExitFailure, 0,
            absl::StrCat("process ", rank->pid,
                         " has ended without ringd.shutdown(), killed or by an error: see the "
                         "launcher's output"));
  }
  if (placed_ || failed_) return;
  Fail(absl::StatusCode::kUnavailable,
       absl::StrCat(
           "rank ", number, " (process ", rank->pid, ") ",
           status.has_value() ? ExitText(rank->end.exit_code, rank->end.signal) : "has ended",
           " while others still called init(): see its output"));
}

void AttachServer::EndRank(Rank* rank, int exit_code, int signal, const std::string& text) {
  rank->ended = true;
  rank->client.reset();
  rank->end = {};
  rank->end.header = {attach::Kind::kRankEnded, attach::kVersion};
  rank->end.exit_code = exit_code;
  rank->end.signal = signal;
  session::FillText(text, rank->end.text, sizeof(rank->end.text));
  if (rank->stand_in.valid()) {
    (void)SendPacket(rank->stand_in.get(), &rank->end, sizeof(rank->end), nullptr, 0);
  }
}

void AttachServer::Fail(absl::StatusCode code, const std::string& text) {
  failed_ = true;
  for (auto& [number, rank] : ranks_) {
    if (rank.ended) continue;
    if (rank.client.valid()) Refuse(rank.client.get(), code, text);
    EndRank(&rank, kExitFailure, 0, text);
  }
  syscall(SYS_pidfd_send_signal, command_.pidfd.get(), SIGTERM, nullptr, 0);
}

void AttachServer::ReadCommandErrors() {
  while (IsReadable(command_errors_.get())) {
    char buffer[4096];
    const ssize_t bytes = read(command_errors_.get(), buffer, sizeof(buffer));
    if (bytes <= 0) return command_errors_.reset();
    errors_.append(buffer, static_cast<size_t>(bytes));
    if (errors_.size() > kMaxErrorBytes) errors_.erase(0, errors_.size() - kMaxErrorBytes);
  }
}

void AttachServer::CheckCommand() {
  if (!HasEnded(command_.pidfd.get())) return;
  (void)WaitForExit(command_, absl::InfiniteDuration());
  if (!placed_ && !failed_) {
    Fail(absl::StatusCode::kUnavailable,
         absl::StrCat("ringd could not start on this node: ",
                      errors_.empty() ? "ringctl ended without a word" : errors_));
  }
  over_ = true;
}

std::string AttachServer::MissingRanks() const {
  std::vector<bool> present(local_size_, false);
  for (const auto& [number, rank] : ranks_) {
    if (rank.pid != 0) present[rank.place.local_rank] = true;
  }
  const bool one_node = size_ == local_size_;
  std::vector<int32_t> missing;
  for (int32_t i = 0; i < local_size_; ++i) {
    if (!present[i]) missing.push_back(i);
  }
  if (missing.empty()) return "";
  return absl::StrCat(one_node ? "rank" : "local rank", missing.size() == 1 ? " " : "s ",
                      absl::StrJoin(missing, ", "), " of ", local_size_);
}

void AttachServer::CheckTimeout() {
  if (placed_ || failed_) return;
  if (MonotonicMicros() - start_us_ < absl::ToInt64Microseconds(timeout_)) return;
  const std::string missing = MissingRanks();
  // Who runs the job may know, as soon as it has given up.
  if (missing.empty() &&
      MonotonicMicros() - start_us_ < absl::ToInt64Microseconds(timeout_ + kCommandPatience)) {
    return;
  }
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(timeout_));
  if (!missing.empty()) {
    return Fail(absl::StatusCode::kDeadlineExceeded,
                absl::StrCat("no call of init()", within, " by ", missing,
                             ": all ranks call it; init(timeout=...) waits longer"));
  }
  Fail(absl::StatusCode::kDeadlineExceeded,
       absl::StrCat("ringd has not started all ranks", within,
                    size_ == local_size_ ? ""
                                         : ": the daemons of the job's nodes must reach each other "
                                           "and MASTER_ADDR over TCP",
                    errors_.empty() ? "" : ": ", errors_));
}

}  // namespace ringd::worker
