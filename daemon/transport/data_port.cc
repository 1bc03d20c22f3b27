#include "daemon/transport/data_port.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <list>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "daemon/transport/dialler.h"
#include "daemon/transport/handshake.h"
#include "daemon/transport/tcp.h"

namespace ringd::daemon {
namespace {

// A node's daemon meets few neighbours at a time; more are strangers.
constexpr size_t kMaxHandshakes = 64;
// For a dialler to say Hello and the ring to be opened here, and again from the challenge to the
// proof.
constexpr absl::Duration kHandshakeLimit = absl::Seconds(5);
// Pause of accepting when the process is out of descriptors.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

struct RingId {
  std::string job;
  uint64_t generation = 0;
  uint16_t group = 0;
  int peer = 0;  // wire::kMessages only.
  friend auto operator<=>(const RingId&, const RingId&) = default;
};

int NodeAt(const RingOptions& options, int index) {
  const int wrapped = (index + options.node_count) % options.node_count;
  return options.nodes.empty() ? wrapped : options.nodes[wrapped];
}

// Lane 0 is the ring itself, the others are its shortcuts.
int RightNode(const RingOptions& options, size_t lane) {
  return NodeAt(options, options.node_index + (1 << lane));
}
int LeftNode(const RingOptions& options, size_t lane) {
  return NodeAt(options, options.node_index - (1 << lane));
}
const std::string& RightAddress(const RingOptions& options, size_t lane) {
  return lane == 0 ? options.right_address : options.shortcut_addresses[lane - 1];
}

RingId IdOf(const RingOptions& options) {
  const int peer = options.group == wire::kMessages ? NodeAt(options, options.node_index + 1) : 0;
  return {options.job, options.generation, options.group, peer};
}

RingId IdOf(const wire::Hello& hello) {
  const int peer = hello.group == wire::kMessages ? static_cast<int>(hello.from_node) : 0;
  return {HelloJob(hello), hello.generation, hello.group, peer};
}

// A connection that somebody has made to us.
struct Inbound {
  enum class State { kHello, kHeld, kProof };
  UniqueFd fd;
  std::string peer;
  State state = State::kHello;
  wire::Hello hello{};
  wire::Challenge challenge{};
  wire::Proof proof{};
  size_t received_bytes = 0;  // Of the message awaited.
  uint64_t timer = 0;
};
using InboundList = std::list<Inbound>;

// A connection to the right and one from the left.
struct Lane {
  std::unique_ptr<Dialler> dialler;
  UniqueFd right;
  UniqueFd left;
};

struct Ring {
  RingOptions options;
  DataPort::RingDone done;
  std::vector<Lane> lanes;
  uint64_t timer = 0;
  std::string left_trouble;  // Why the last connection from the left was refused.

  // Null: none of ours.
  Lane* LaneFrom(const wire::Hello& hello) {
    if (hello.to_node != static_cast<uint32_t>(NodeAt(options, options.node_index))) return nullptr;
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if (hello.from_node == static_cast<uint32_t>(LeftNode(options, lane))) return &lanes[lane];
    }
    return nullptr;
  }
};

enum class ReadResult { kWhole, kPart, kEnd };

// Reads no byte beyond the message: what follows belongs to the ring.
ReadResult ReadMessage(int fd, void* message, size_t bytes, size_t* have) {
  while (*have < bytes) {
    const ssize_t count = recv(fd, static_cast<char*>(message) + *have, bytes - *have, 0);
    if (count > 0) {
      *have += static_cast<size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return ReadResult::kPart;
    } else {
      return ReadResult::kEnd;
    }
  }
  return ReadResult::kWhole;
}

absl::Status CheckOptions(const RingOptions& options) {
  if (options.job.empty() || options.job.size() >= sizeof(wire::Hello::job) ||
      options.job.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("job name of ", options.job.size(), " bytes; a ring's job name has 1 to 63"));
  }
  if (options.key.size() != kJobKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key of ", options.key.size(), " bytes, not ", kJobKeyBytes));
  }
  if (options.node_count < 2 || options.node_index < 0 ||
      options.node_index >= options.node_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("no node ", options.node_index, " in a ring of ", options.node_count));
  }
  if (!options.nodes.empty() && options.nodes.size() != static_cast<size_t>(options.node_count)) {
    return absl::InvalidArgumentError("the ring's node numbers don't fit its node count");
  }
  const size_t shortcuts = options.shortcut_addresses.size();
  if (shortcuts > 0 && shortcuts != static_cast<size_t>(ShortcutCount(options.node_count))) {
    return absl::InvalidArgumentError(
        absl::StrCat(shortcuts, " shortcuts in a ring of ", options.node_count));
  }
  for (const std::string& address : options.shortcut_addresses) {
    RINGD_RETURN_IF_ERROR(ParseHostPort(address).status());
  }
  return ParseHostPort(options.right_address).status();
}

class DataPortImpl : public DataPort {
 public:
  DataPortImpl(EventLoop* loop, UniqueFd listener)
      : loop_(loop), log_(GetLogger("transport")), listener_(std::move(listener)) {}
  ~DataPortImpl() override;

  absl::Status Listen() {
    return loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  }

  int port() const override { return LocalPort(listener_.get()); }
  void OpenRing(const RingOptions& options, RingDone done) override;
  void CloseRing(const std::string& job, uint64_t generation, uint16_t group, int peer) override;
  void set_wanted_handler(std::function<void(const RingRequest&)> wanted) override {
    wanted_ = std::move(wanted);
  }

 private:
  // Inbound connections. `Drop` and `Adopt` end the entry.
  void Accept();
  void MakeRoom();
  void OnReadable(InboundList::iterator inbound);
  void OnHello(InboundList::iterator inbound);
  void SendChallenge(InboundList::iterator inbound, Ring* ring);
  void OnProof(InboundList::iterator inbound);
  void Drop(InboundList::iterator inbound, const std::string& reason);
  void ResetLimit(InboundList::iterator inbound);
  void Forget(InboundList::iterator inbound);

  // Rings.
  void StartDialling(const RingId& id, size_t lane);
  void FinishIfComplete(const RingId& id);
  void Expire(const RingId& id);
  void Finish(const RingId& id, absl::StatusOr<RingSockets> result);
  Ring* FindRing(const RingId& id);

  EventLoop* const loop_;
  const std::shared_ptr<spdlog::logger> log_;
  UniqueFd listener_;
  uint64_t accept_timer_ = 0;
  InboundList inbound_;  // Oldest first.
  std::map<RingId, Ring> rings_;
  std::function<void(const RingRequest&)> wanted_;
};

DataPortImpl::~DataPortImpl() {
  loop_->Unwatch(listener_.get());
  loop_->CancelTimer(accept_timer_);
  while (!inbound_.empty()) Forget(inbound_.begin());
  for (auto& [id, ring] : rings_) loop_->CancelTimer(ring.timer);
}

void DataPortImpl::Accept() {
  sockaddr_storage unused;
  socklen_t unused_bytes = sizeof(unused);
  UniqueFd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&unused), &unused_bytes,
                      SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    log_->error("can't accept data connections error={}", strerror(errno));
    if (!loop_->Modify(listener_.get(), 0).ok()) return;
    accept_timer_ = loop_->AddTimer(kAcceptPause, [this] {
      if (!loop_->Modify(listener_.get(), EPOLLIN).ok()) log_->error("data port lost");
    });
    return;
  }
  if (inbound_.size() >= kMaxHandshakes) MakeRoom();
  if (inbound_.size() >= kMaxHandshakes) {
    log_->warn("data connection refused peer={} reason=\"{} handshakes under way\"",
               PeerName(fd.get()), kMaxHandshakes);
    return;
  }
  ConfigureDataSocket(fd.get());
  const auto inbound = inbound_.emplace(inbound_.end());
  inbound->fd = std::move(fd);
  inbound->peer = PeerName(inbound->fd.get());
  ResetLimit(inbound);
  const absl::Status watched =
      loop_->Watch(inbound->fd.get(), EPOLLIN, [this, inbound](uint32_t) { OnReadable(inbound); });
  if (!watched.ok()) Drop(inbound, std::string(watched.message()));
}

// Those that have been given a challenge are probably genuine and soon done: the oldest of the
// others goes.
void DataPortImpl::MakeRoom() {
  for (auto inbound = inbound_.begin(); inbound != inbound_.end(); ++inbound) {
    if (inbound->state == Inbound::State::kProof) continue;
    Drop(inbound, "too many handshakes under way");
    return;
  }
}

void DataPortImpl::OnReadable(InboundList::iterator inbound) {
  const bool is_proof = inbound->state == Inbound::State::kProof;
  if (inbound->state == Inbound::State::kHeld) {
    // Nothing may come now: this is the end of the connection, or an impostor.
    Drop(inbound, "closed or spoke while it had to wait");
    return;
  }
  void* const message = is_proof ? static_cast<void*>(&inbound->proof) : &inbound->hello;
  const size_t bytes = is_proof ? sizeof(inbound->proof) : sizeof(inbound->hello);
  switch (ReadMessage(inbound->fd.get(), message, bytes, &inbound->received_bytes)) {
    case ReadResult::kPart:
      // Most strangers are found out by their first bytes.
      if (!is_proof && inbound->received_bytes >= sizeof(inbound->hello.magic) &&
          inbound->hello.magic != wire::kMagic) {
        Drop(inbound, "not a ringd data connection");
      }
      return;
    case ReadResult::kEnd:
      Drop(inbound, "closed by the peer");
      return;
    case ReadResult::kWhole:
      if (is_proof) {
        OnProof(inbound);
      } else {
        OnHello(inbound);
      }
  }
}

void DataPortImpl::OnHello(InboundList::iterator inbound) {
  if (const absl::Status status = CheckHello(inbound->hello); !status.ok()) {
    Drop(inbound, std::string(status.message()));
    return;
  }
  Ring* const ring = FindRing(IdOf(inbound->hello));
  if (ring == nullptr) {
    inbound->state = Inbound::State::kHeld;  // The order to open it may be on its way.
    const wire::Hello& hello = inbound->hello;
    if (wanted_) {
      wanted_({HelloJob(hello), hello.generation, hello.group, static_cast<int>(hello.from_node)});
    }
  } else {
    SendChallenge(inbound, ring);
  }
}

void DataPortImpl::SendChallenge(InboundList::iterator inbound, Ring* ring) {
  const RingOptions& options = ring->options;
  const wire::Hello& hello = inbound->hello;
  if (ring->LaneFrom(hello) == nullptr) {
    ring->left_trouble = absl::StrCat("a connection from node ", hello.from_node, " to node ",
                                      hello.to_node, " came instead");
    Drop(inbound, ring->left_trouble);
    return;
  }
  inbound->challenge = MakeChallenge(options.key, hello);
  inbound->state = Inbound::State::kProof;
  inbound->received_bytes = 0;
  ResetLimit(inbound);
  // Into an empty send buffer: whole or not at all.
  if (send(inbound->fd.get(), &inbound->challenge, sizeof(inbound->challenge), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof(inbound->challenge))) {
    Drop(inbound, "closed by the peer");
  }
}

void DataPortImpl::OnProof(InboundList::iterator inbound) {
  const RingId id = IdOf(inbound->hello);
  Ring* const ring = FindRing(id);
  if (ring == nullptr) {
    Drop(inbound, "its ring has been closed");
    return;
  }
  if (!CheckProof(ring->options.key, inbound->hello, inbound->challenge, inbound->proof)) {
    ring->left_trouble = absl::StrCat("a connection from ", inbound->peer, " had the wrong key");
    Drop(inbound, "wrong key");
    return;
  }
  loop_->Unwatch(inbound->fd.get());
  // A later one replaces an earlier one, which its dialler gave up.
  ring->LaneFrom(inbound->hello)->left = std::move(inbound->fd);
  Forget(inbound);
  FinishIfComplete(id);
}

void DataPortImpl::Drop(InboundList::iterator inbound, const std::string& reason) {
  log_->warn("data connection dropped peer={} reason=\"{}\"", inbound->peer, reason);
  Forget(inbound);
}

void DataPortImpl::ResetLimit(InboundList::iterator inbound) {
  loop_->CancelTimer(inbound->timer);
  inbound->timer = loop_->AddTimer(kHandshakeLimit, [this, inbound] {
    const bool held = inbound->state == Inbound::State::kHeld;
    Drop(inbound, held ? absl::StrCat("no ring of job ", HelloJob(inbound->hello), " generation ",
                                      inbound->hello.generation, " here")
                       : "handshake not finished in time");
  });
}

void DataPortImpl::Forget(InboundList::iterator inbound) {
  if (inbound->fd.valid()) loop_->Unwatch(inbound->fd.get());
  loop_->CancelTimer(inbound->timer);
  inbound_.erase(inbound);
}

void DataPortImpl::OpenRing(const RingOptions& options, RingDone done) {
  absl::Status status = CheckOptions(options);
  const RingId id = status.ok() ? IdOf(options) : RingId{};
  if (status.ok() && rings_.contains(id)) {
    status = absl::AlreadyExistsError(absl::StrCat("ring of job ", options.job, " generation ",
                                                   options.generation, " is being opened"));
  }
  if (!status.ok()) {
    loop_->AddTimer(absl::ZeroDuration(), [done = std::move(done), status] { done(status); });
    return;
  }
  Ring& ring = rings_[id];
  ring.options = options;
  ring.done = std::move(done);
  ring.timer = loop_->AddTimer(options.connect_timeout, [this, id] { Expire(id); });
  ring.lanes.resize(1 + options.shortcut_addresses.size());
  for (size_t lane = 0; lane < ring.lanes.size(); ++lane) StartDialling(id, lane);
  for (auto next = inbound_.begin(); next != inbound_.end();) {
    const auto inbound = next++;
    if (inbound->state == Inbound::State::kHeld && IdOf(inbound->hello) == id) {
      SendChallenge(inbound, &ring);
    }
  }
}

void DataPortImpl::CloseRing(const std::string& job, uint64_t generation, uint16_t group,
                             int peer) {
  const auto found = rings_.find({job, generation, group, peer});
  if (found == rings_.end()) return;
  loop_->CancelTimer(found->second.timer);
  rings_.erase(found);
}

Ring* DataPortImpl::FindRing(const RingId& id) {
  const auto found = rings_.find(id);
  return found == rings_.end() ? nullptr : &found->second;
}

void DataPortImpl::StartDialling(const RingId& id, size_t lane) {
  Ring* const ring = FindRing(id);
  const RingOptions& options = ring->options;
  DialOptions dial;
  dial.address = RightAddress(options, lane);
  dial.job = options.job;
  dial.generation = options.generation;
  dial.key = options.key;
  dial.from_node = NodeAt(options, options.node_index);
  dial.to_node = RightNode(options, lane);
  dial.group = options.group;
  dial.attempt_limit = kHandshakeLimit;
  ring->lanes[lane].dialler = std::make_unique<Dialler>(
      loop_, std::move(dial), [this, id, lane](absl::StatusOr<UniqueFd> fd) {
        if (!fd.ok()) {
          Finish(id, fd.status());
          return;
        }
        FindRing(id)->lanes[lane].right = *std::move(fd);
        FinishIfComplete(id);
      });
}

void DataPortImpl::FinishIfComplete(const RingId& id) {
  Ring* const ring = FindRing(id);
  for (const Lane& lane : ring->lanes) {
    if (!lane.right.valid() || !lane.left.valid()) return;
  }
  RingSockets sockets;
  for (Lane& lane : ring->lanes) {
    const SocketPair pair{lane.right.release(), lane.left.release()};
    if (&lane == &ring->lanes[0]) {
      static_cast<SocketPair&>(sockets) = pair;
    } else {
      sockets.shortcuts.push_back(pair);
    }
  }
  log_->info("ring formed job={} generation={} group={} node={} nodes={}", id.job, id.generation,
             id.group, NodeAt(ring->options, ring->options.node_index), ring->options.node_count);
  Finish(id, sockets);
}

void DataPortImpl::Expire(const RingId& id) {
  const Ring& ring = *FindRing(id);
  const RingOptions& options = ring.options;
  std::string missing;
  for (size_t lane = 0; lane < ring.lanes.size(); ++lane) {
    const bool is_shortcut = lane > 0;
    if (!ring.lanes[lane].right.valid()) {
      absl::StrAppend(&missing, "; can't reach ", is_shortcut ? "" : "the right neighbour, ",
                      "node ", RightNode(options, lane), " at ", RightAddress(options, lane), " (",
                      ring.lanes[lane].dialler->trouble(), ")");
    }
    if (!ring.lanes[lane].left.valid()) {
      absl::StrAppend(&missing, "; ", is_shortcut ? "" : "the left neighbour, ", "node ",
                      LeftNode(options, lane), ", has not connected");
    }
  }
  if (!ring.left_trouble.empty()) absl::StrAppend(&missing, " (", ring.left_trouble, ")");
  Finish(id, absl::DeadlineExceededError(absl::StrCat(
                 "ring of job ", options.job, " generation ", options.generation,
                 " not formed within ", absl::FormatDuration(options.connect_timeout), missing,
                 ". Check that the daemons' data addresses can be reached from each other")));
}

void DataPortImpl::Finish(const RingId& id, absl::StatusOr<RingSockets> result) {
  const auto found = rings_.find(id);
  const RingDone done = std::move(found->second.done);
  loop_->CancelTimer(found->second.timer);
  const Ring ended =
      std::move(found->second);  // The dialler, whose callback this may be, goes last.
  rings_.erase(found);
  if (!result.ok()) {
    log_->warn("ring not formed job={} generation={} group={} reason=\"{}\"", id.job, id.generation,
               id.group, std::string(result.status().message()));
  }
  done(std::move(result));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPort>> DataPort::Create(EventLoop* loop,
                                                           const std::string& address) {
  RINGD_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(address));
  auto port = std::make_unique<DataPortImpl>(loop, std::move(listener));
  RINGD_RETURN_IF_ERROR(port->Listen());
  return port;
}

}  // namespace ringd::daemon
