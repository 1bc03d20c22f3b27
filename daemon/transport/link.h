// Frames (proto/wire.h) in and out of one authenticated connection, without blocking.
#ifndef RINGD_DAEMON_TRANSPORT_LINK_H_
#define RINGD_DAEMON_TRANSPORT_LINK_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "daemon/transport/event_loop.h"
#include "proto/wire.h"

namespace ringd::daemon {

// One socket's frames. Payload of data frames goes from and to its owner's memory directly; control
// frames overtake queued data frames and keep their order among themselves.
//
// Life: created on a connected, non-blocking socket; works inside Receive and Flush, and once a
// second on a timer (heartbeat when idle, watch on the peer). Its destructor sends what it can and
// closes the socket gently. Ownership: the socket is the link's. Payload memory stays the caller's
// until OnSent, or until DropData. Thread-bound: the event loop's thread. Failure: sticky `status`:
// UNAVAILABLE: the peer closed, reset or fell silent; INVALID_ARGUMENT: it broke the protocol.
class Link {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // A data frame begins: where to put its payload; null discards it. An error breaks the link.
    virtual absl::StatusOr<std::byte*> OnData(const wire::FrameHeader& header) = 0;
    // A frame other than a ping is complete. payload: where OnData said; the text of a flood or
    // note; else null.
    virtual absl::Status OnFrame(const wire::FrameHeader& header, const std::byte* payload) = 0;
    // A data frame is with the kernel: its memory isn't used any more.
    virtual void OnSent(uint64_t tag) = 0;
  };

  struct Counters {
    uint64_t payload_bytes_sent = 0;  // Of data frames.
    uint64_t payload_bytes_received = 0;
    uint64_t frames_sent = 0;
  };

  Link(EventLoop* loop, UniqueFd fd, uint64_t generation, Handler* handler);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // The header's magic, generation and payload_bytes are filled in.
  void SendControl(wire::FrameHeader header, std::string text);
  // REQUIRES: tag is not 0, bytes <= kMaxPayloadBytes.
  void SendData(wire::FrameHeader header, const std::byte* payload, uint32_t bytes, uint64_t tag);
  // Forgets the tag's data frames; there is no OnSent for them. A frame that is partly on its way
  // is finished from a copy.
  void DropData(uint64_t tag);

  uint64_t queued_data_bytes() const { return queued_data_bytes_; }
  size_t queued_data_frames() const { return data_.size(); }

  // Header of the frame whose payload is being received, or null.
  const wire::FrameHeader* incoming() const { return in_payload_ ? &header_ : nullptr; }
  // The rest of that payload goes nowhere.
  void DiscardIncoming() { destination_ = nullptr; }

  // Read and write until the socket is exhausted or about max_bytes have moved. Return whether
  // anything has.
  bool Receive(size_t max_bytes);
  bool Flush(size_t max_bytes);

  const absl::Status& status() const { return status_; }
  const Counters& counters() const { return counters_; }

 private:
  struct Outgoing {
    wire::FrameHeader header;
    const std::byte* payload = nullptr;
    std::string text;       // Payload owned by the frame, where not empty.
    uint64_t tag = 0;       // 0: control.
    size_t sent_bytes = 0;  // Header included.

    const std::byte* data() const {
      return text.empty() ? payload : reinterpret_cast<const std::byte*>(text.data());
    }
    size_t bytes() const { return sizeof(header) + header.payload_bytes; }
  };

  void OnEvents(uint32_t events);
  void OnTick();
  void Break(absl::Status status);

  absl::Status ParseBuffer();
  absl::Status BeginFrame();
  absl::Status CheckHeader() const;
  absl::Status EndFrame();
  void StorePayload(const std::byte* from, size_t bytes);
  absl::Status AddReceived(size_t bytes, size_t direct_bytes);

  size_t CollectFrames(std::vector<iovec>* parts) const;
  void ConsumeSent(size_t bytes);
  bool ConsumeFrame(std::deque<Outgoing>* queue, size_t* bytes);
  void NoteSent(const Outgoing& frame);

  EventLoop* const loop_;
  UniqueFd fd_;
  const uint64_t generation_;
  Handler* const handler_;
  absl::Status status_;
  Counters counters_;
  uint64_t timer_ = 0;
  int64_t last_tick_us_;
  int64_t watched_since_us_;
  bool sent_since_tick_ = false;

  // Receiving.
  bool readable_ = true;
  bool hung_up_ = false;  // No further edge will come: read until the end.
  std::vector<std::byte> buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  bool in_payload_ = false;
  wire::FrameHeader header_{};
  std::byte* destination_ = nullptr;  // Of the next payload byte.
  std::byte* payload_begin_ = nullptr;
  size_t payload_left_ = 0;
  std::vector<std::byte> text_;
  std::vector<std::byte> discarded_;

  // Sending.
  bool writable_ = true;
  std::optional<Outgoing> partial_;
  std::deque<Outgoing> control_;
  std::deque<Outgoing> data_;
  uint64_t queued_data_bytes_ = 0;     // Of data_.
  uint64_t queued_control_bytes_ = 0;  // Of control_.
  std::vector<uint64_t> sent_tags_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_LINK_H_
