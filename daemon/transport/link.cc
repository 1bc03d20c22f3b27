#include "daemon/transport/link.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/futex.h"
#include "common/status/macros.h"
#include "daemon/transport/tcp.h"

namespace ringd::daemon {
namespace {

constexpr size_t kBufferBytes = 16 << 10;  // Headers and small frames, many a read.
constexpr size_t kReadAheadBytes =
    4 << 10;  // Behind a payload that is read in place: what follows is copied.
constexpr size_t kDiscardBytes = 64 << 10;
constexpr size_t kMaxParts = 64;  // Of one sendmsg.
constexpr size_t kPartsPerFrame = 2;
// Floods that a peer may leave unread: thousands of ordinary ones.
constexpr uint64_t kMaxQueuedControlBytes = 64u << 20;
constexpr absl::Duration kTick = absl::Seconds(1);
// With the tick, a lost node is noticed within 5 s; a live one's kernel answers each second.
constexpr absl::Duration kSilenceLimit = absl::Seconds(4);

bool HasText(wire::FrameType type) {
  return type == wire::FrameType::kAbort || type == wire::FrameType::kAbortFrom ||
         type == wire::FrameType::kNote;
}

}  // namespace

Link::Link(EventLoop* loop, UniqueFd fd, uint64_t generation, Handler* handler)
    : loop_(loop),
      fd_(std::move(fd)),
      generation_(generation),
      handler_(handler),
      last_tick_us_(MonotonicMicros()),
      watched_since_us_(last_tick_us_),
      buffer_(kBufferBytes) {
  const absl::Status watched = loop_->Watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                            [this](uint32_t events) { OnEvents(events); });
  if (!watched.ok()) Break(watched);
  timer_ = loop_->AddTimer(kTick, [this] { OnTick(); });
}

Link::~Link() {
  data_.clear();
  if (partial_.has_value()) partial_->tag = 0;
  Flush(kMaxQueuedControlBytes);
  loop_->CancelTimer(timer_);
  loop_->Unwatch(fd_.get());
  CloseGently(loop_, std::move(fd_));
}

void Link::OnEvents(uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
  if (hung_up_ || (events & EPOLLIN) != 0) readable_ = true;
  if ((events & EPOLLOUT) != 0) writable_ = true;
}

void Link::OnTick() {
  timer_ = loop_->AddTimer(kTick, [this] { OnTick(); });
  if (!status_.ok()) return;
  const int64_t now_us = MonotonicMicros();
  // A thread that was late itself doesn't judge others.
  if (now_us - last_tick_us_ > 2 * absl::ToInt64Microseconds(kTick)) watched_since_us_ = now_us;
  last_tick_us_ = now_us;
  if (absl::Microseconds(now_us - watched_since_us_) >= kSilenceLimit) {
    if (const absl::Duration silence = PeerSilence(fd_.get()); silence >= kSilenceLimit) {
      Break(absl::UnavailableError(absl::StrCat("no packet for ", absl::FormatDuration(silence))));
      return;
    }
  }
  if (!sent_since_tick_ && !partial_.has_value()) {
    wire::FrameHeader ping{};
    ping.type = wire::FrameType::kPing;
    SendControl(ping, {});
    Flush(kBufferBytes);
  }
  sent_since_tick_ = false;
}

void Link::Break(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  if (absl::IsInvalidArgument(status_)) shutdown(fd_.get(), SHUT_RDWR);
  partial_.reset();
  control_.clear();
  data_.clear();
  queued_data_bytes_ = 0;
  queued_control_bytes_ = 0;
}

bool Link::Receive(size_t max_bytes) {
  size_t moved = 0;
  while (status_.ok() && readable_ && moved < max_bytes) {
    iovec parts[2];
    int part_count = 0;
    size_t direct = 0;
    size_t buffer_room = kBufferBytes - buffer_end_;
    if (in_payload_) {
      // The buffer is empty: ParseBuffer stops before a payload's end only when it has run dry.
      direct = payload_left_;
      if (destination_ == nullptr) {
        discarded_.resize(kDiscardBytes);
        direct = std::min(direct, kDiscardBytes);
      }
      parts[part_count++] = {destination_ == nullptr ? discarded_.data() : destination_, direct};
      buffer_room = direct == payload_left_ ? kReadAheadBytes : 0;
    }
    if (buffer_room > 0) parts[part_count++] = {buffer_.data() + buffer_end_, buffer_room};
    const ssize_t count = readv(fd_.get(), parts, part_count);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      readable_ = false;
      break;
    }
    if (count <= 0) {
      Break(absl::UnavailableError(count == 0 ? "it closed the connection" : strerror(errno)));
      return true;
    }
    moved += static_cast<size_t>(count);
    // A short read has emptied the socket, and the next byte makes a new edge.
    if (static_cast<size_t>(count) < direct + buffer_room && !hung_up_) readable_ = false;
    if (absl::Status status = AddReceived(static_cast<size_t>(count), direct); !status.ok()) {
      Break(std::move(status));
    }
  }
  return moved > 0;
}

absl::Status Link::AddReceived(size_t bytes, size_t direct_bytes) {
  const size_t in_place = std::min(bytes, direct_bytes);
  if (in_place > 0) {
    if (destination_ != nullptr) destination_ += in_place;
    payload_left_ -= in_place;
    if (payload_left_ == 0) RINGD_RETURN_IF_ERROR(EndFrame());
  }
  buffer_end_ += bytes - in_place;
  return ParseBuffer();
}

absl::Status Link::ParseBuffer() {
  while (true) {
    const size_t available = buffer_end_ - buffer_begin_;
    if (in_payload_) {
      const size_t bytes = std::min(available, payload_left_);
      StorePayload(buffer_.data() + buffer_begin_, bytes);
      buffer_begin_ += bytes;
      if (payload_left_ > 0) break;
      RINGD_RETURN_IF_ERROR(EndFrame());
    } else {
      if (available < sizeof(header_)) break;
      memcpy(&header_, buffer_.data() + buffer_begin_, sizeof(header_));
      buffer_begin_ += sizeof(header_);
      RINGD_RETURN_IF_ERROR(BeginFrame());
    }
  }
  if (buffer_begin_ > 0) {
    memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  return absl::OkStatus();
}

void Link::StorePayload(const std::byte* from, size_t bytes) {
  if (destination_ != nullptr && bytes > 0) {
    memcpy(destination_, from, bytes);
    destination_ += bytes;
  }
  payload_left_ -= bytes;
}

absl::Status Link::CheckHeader() const {
  if (header_.magic != wire::kMagic) return absl::InvalidArgumentError("it sent no frame");
  if (header_.generation != generation_) {
    return absl::InvalidArgumentError(
        absl::StrCat("it sent a frame of generation ", header_.generation));
  }
  bool is_valid = header_.flags == 0;
  switch (header_.type) {
    case wire::FrameType::kReady:
    case wire::FrameType::kPing:
      is_valid &= header_.payload_bytes == 0;
      break;
    case wire::FrameType::kData:
      is_valid &= header_.payload_bytes <= wire::kMaxPayloadBytes;
      break;
    case wire::FrameType::kAbort:
    case wire::FrameType::kAbortFrom:
      is_valid &= header_.payload_bytes >= sizeof(wire::Failure) &&
                  header_.payload_bytes <= wire::kMaxTextBytes;
      break;
    case wire::FrameType::kNote:
      is_valid &= header_.payload_bytes > 0 && header_.payload_bytes <= wire::kMaxTextBytes;
      break;
    default:
      is_valid = false;
  }
  if (is_valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it sent a frame of type ", static_cast<int>(header_.type), " with flags ",
                   header_.flags, " and ", header_.payload_bytes, " bytes"));
}

absl::Status Link::BeginFrame() {
  RINGD_RETURN_IF_ERROR(CheckHeader());
  payload_begin_ = nullptr;
  if (HasText(header_.type)) {
    text_.resize(header_.payload_bytes);
    payload_begin_ = text_.data();
  } else if (header_.type == wire::FrameType::kData) {
    RINGD_ASSIGN_OR_RETURN(payload_begin_, handler_->OnData(header_));
  }
  destination_ = payload_begin_;
  payload_left_ = header_.payload_bytes;
  in_payload_ = true;
  return payload_left_ == 0 ? EndFrame() : absl::OkStatus();
}

absl::Status Link::EndFrame() {
  in_payload_ = false;
  if (header_.type == wire::FrameType::kPing) return absl::OkStatus();
  if (header_.type == wire::FrameType::kData) {
    counters_.payload_bytes_received += header_.payload_bytes;
    // Discarded from the start or since.
    if (header_.payload_bytes > 0 && destination_ == nullptr) return absl::OkStatus();
  }
  return handler_->OnFrame(header_, payload_begin_);
}

void Link::SendControl(wire::FrameHeader header, std::string text) {
  if (!status_.ok()) return;
  header.magic = wire::kMagic;
  header.generation = generation_;
  header.payload_bytes = static_cast<uint32_t>(text.size());
  Outgoing frame{header};
  frame.text = std::move(text);
  queued_control_bytes_ += frame.bytes();
  control_.push_back(std::move(frame));
  if (queued_control_bytes_ > kMaxQueuedControlBytes) {
    Break(absl::UnavailableError("it does not read what it is sent"));
  }
}

void Link::SendData(wire::FrameHeader header, const std::byte* payload, uint32_t bytes,
                    uint64_t tag) {
  if (!status_.ok()) return;
  header.magic = wire::kMagic;
  header.generation = generation_;
  header.payload_bytes = bytes;
  Outgoing frame{header};
  frame.payload = payload;
  frame.tag = tag;
  queued_data_bytes_ += frame.bytes();
  data_.push_back(std::move(frame));
}

void Link::DropData(uint64_t tag) {
  std::erase_if(data_, [&](const Outgoing& frame) {
    if (frame.tag != tag) return false;
    queued_data_bytes_ -= frame.bytes();
    return true;
  });
  if (!partial_.has_value() || partial_->tag != tag) return;
  if (partial_->header.payload_bytes > 0) {
    partial_->text.assign(reinterpret_cast<const char*>(partial_->payload),
                          partial_->header.payload_bytes);
  }
  partial_->tag = 0;
}

bool Link::Flush(size_t max_bytes) {
  size_t moved = 0;
  while (status_.ok() && writable_ && moved < max_bytes) {
    std::vector<iovec> parts;
    const size_t asked = CollectFrames(&parts);
    if (asked == 0) break;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t count = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      writable_ = false;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      // The peer's last words may be waiting: the link breaks when they have been read.
      hung_up_ = true;
      readable_ = true;
      break;
    }
    moved += static_cast<size_t>(count);
    if (static_cast<size_t>(count) < asked) writable_ = false;
    ConsumeSent(static_cast<size_t>(count));
  }
  return moved > 0;
}

size_t Link::CollectFrames(std::vector<iovec>* parts) const {
  parts->reserve(kMaxParts);
  size_t total = 0;
  const auto add = [&](const Outgoing& frame) {
    if (parts->size() + kPartsPerFrame > kMaxParts) return false;
    total += frame.bytes() - frame.sent_bytes;
    size_t skip = frame.sent_bytes;
    if (skip < sizeof(frame.header)) {
      const auto* header = reinterpret_cast<const char*>(&frame.header);
      parts->push_back({const_cast<char*>(header) + skip, sizeof(frame.header) - skip});
      skip = sizeof(frame.header);
    }
    if (skip < frame.bytes()) {
      parts->push_back({const_cast<std::byte*>(frame.data()) + (skip - sizeof(frame.header)),
                        frame.bytes() - skip});
    }
    return true;
  };
  if (partial_.has_value()) add(*partial_);
  for (const Outgoing& frame : control_) {
    if (!add(frame)) return total;
  }
  for (const Outgoing& frame : data_) {
    if (!add(frame)) return total;
  }
  return total;
}

void Link::ConsumeSent(size_t bytes) {
  sent_since_tick_ = true;
  if (partial_.has_value()) {
    const size_t count = std::min(bytes, partial_->bytes() - partial_->sent_bytes);
    partial_->sent_bytes += count;
    bytes -= count;
    if (partial_->sent_bytes == partial_->bytes()) {
      NoteSent(*partial_);
      partial_.reset();
    }
  }
  while (bytes > 0 && ConsumeFrame(control_.empty() ? &data_ : &control_, &bytes)) {
  }
  // The handler may queue and drop frames.
  const std::vector<uint64_t> tags = std::exchange(sent_tags_, {});
  for (const uint64_t tag : tags) handler_->OnSent(tag);
}

bool Link::ConsumeFrame(std::deque<Outgoing>* queue, size_t* bytes) {
  Outgoing frame = std::move(queue->front());
  queue->pop_front();
  (queue == &data_ ? queued_data_bytes_ : queued_control_bytes_) -= frame.bytes();
  frame.sent_bytes = std::min(*bytes, frame.bytes());
  *bytes -= frame.sent_bytes;
  if (frame.sent_bytes < frame.bytes()) {
    partial_ = std::move(frame);
    return false;
  }
  NoteSent(frame);
  return true;
}

void Link::NoteSent(const Outgoing& frame) {
  ++counters_.frames_sent;
  if (frame.header.type != wire::FrameType::kData) return;
  counters_.payload_bytes_sent += frame.header.payload_bytes;
  if (frame.tag != 0) sent_tags_.push_back(frame.tag);
}

}  // namespace ringd::daemon
