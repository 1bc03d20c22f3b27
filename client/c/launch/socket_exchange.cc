#include "client/c/launch/socket_exchange.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/base/futex.h"

namespace ringd::client {
namespace {

constexpr char kMagic[] = "ringd-launch-1";
constexpr size_t kMaxHelloBytes = 1024;      // A job's name is a few variables.
constexpr size_t kMaxLineBytes = 16384;      // As nodes.cc's.
constexpr int64_t kHelloMicros = 1'000'000;  // It is sent right after the connection was made.
constexpr int64_t kRetryMicros = 100'000;

std::string RankOf(const std::string& key) { return key.substr(key.find('/') + 1); }

bool AwaitReadable(int fd, int64_t deadline_us) {
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    const int64_t left_us = deadline_us - MonotonicMicros();
    if (left_us <= 0) return false;
    const int ready =
        poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_us / 1000 + 1, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Connecting and sending end by then: a host that answers nothing takes minutes else.
void LimitBlocking(int fd, int64_t deadline_us) {
  const int64_t left_us = std::max<int64_t>(1, deadline_us - MonotonicMicros());
  timeval limit{};
  limit.tv_sec = left_us / 1'000'000;
  limit.tv_usec = left_us % 1'000'000;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// Without its end; false: there is none.
bool ReadLine(int fd, size_t max_bytes, int64_t deadline_us, std::string* line) {
  line->clear();
  while (line->size() <= max_bytes && AwaitReadable(fd, deadline_us)) {
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) return false;
    if (byte == '\n') return true;
    line->push_back(byte);
  }
  return false;
}

bool WriteLine(int fd, const std::string& text) {
  const std::string line = text + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t bytes = send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    sent += static_cast<size_t>(bytes);
  }
  return true;
}

}  // namespace

SocketExchange::SocketExchange(Options options)
    : options_(std::move(options)), deadline_us_(MonotonicMicros() + options_.timeout_us) {}

int SocketExchange::Call(void* context, const char* key, const char* text, char* answer,
                         size_t answer_bytes) {
  auto* const self = static_cast<SocketExchange*>(context);
  std::string value;
  const std::string error = text != nullptr ? self->Put(key, text) : self->Get(key, &value);
  const std::string& said = error.empty() ? value : error;
  const size_t bytes = std::min(said.size(), answer_bytes - 1);
  memcpy(answer, said.data(), bytes);
  answer[bytes] = '\0';
  return error.empty() ? 0 : 1;
}

std::string SocketExchange::Listen() {
  if (socket_.valid()) return "";
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(options_.port));
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return "port " + std::to_string(options_.port) + " of this machine: " + strerror(errno) +
           ": set another MASTER_PORT; ringd takes the one after it";
  }
  socket_ = std::move(listener);
  return "";
}

std::string SocketExchange::Connect() {
  const std::string port = std::to_string(options_.port);
  std::string why = "no time";
  while (MonotonicMicros() < deadline_us_) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(options_.host.c_str(), port.c_str(), &hints, &found);
    if (error != 0) {
      why = gai_strerror(error);
    } else {
      UniqueFd line(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      LimitBlocking(line.get(), deadline_us_);
      const int rc = connect(line.get(), found->ai_addr, found->ai_addrlen);
      why = strerror(errno);
      freeaddrinfo(found);
      if (rc == 0) {
        socket_ = std::move(line);
        return "";
      }
    }
    const timespec pause{.tv_sec = 0, .tv_nsec = kRetryMicros * 1000};
    nanosleep(&pause, nullptr);
  }
  return "reaching " + Address() + ": " + why;
}

std::string SocketExchange::Put(const std::string& key, const std::string& text) {
  if (options_.is_host) {
    const Guest& guest = guests_[RankOf(key)];
    return WriteLine(guest.socket.get(), text) ? "" : "its connection has broken";
  }
  if (std::string error = Connect(); !error.empty()) return error;
  const std::string hello =
      std::string(kMagic) + " " + RankOf(key) + " " + text + " " + options_.job;
  return WriteLine(socket_.get(), hello) ? "" : "the connection to " + Address() + " has broken";
}

std::string SocketExchange::Get(const std::string& key, std::string* text) {
  if (options_.is_host) {
    if (std::string error = AwaitGuest(RankOf(key)); !error.empty()) return error;
    *text = guests_[RankOf(key)].size;
    return "";
  }
  if (ReadLine(socket_.get(), kMaxLineBytes, deadline_us_, text)) return "";
  if (MonotonicMicros() >= deadline_us_) return "no answer from " + Address();
  return "who listens at " + Address() +
         " is not rank 0 of this job, or has ended: if that is "
         "another program, set another MASTER_PORT";
}

std::string SocketExchange::AwaitGuest(const std::string& rank) {
  if (std::string error = Listen(); !error.empty()) return error;
  while (guests_.find(rank) == guests_.end()) {
    if (!AwaitReadable(socket_.get(), deadline_us_)) {
      return "nobody has called for it at " + Address();
    }
    Accept();
  }
  return "";
}

void SocketExchange::Accept() {
  UniqueFd line(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::string hello, magic, rank, size, job;
  const int64_t deadline_us = std::min(deadline_us_, MonotonicMicros() + kHelloMicros);
  if (!line.valid() || !ReadLine(line.get(), kMaxHelloBytes, deadline_us, &hello)) return;
  std::istringstream words(hello);
  words >> magic >> rank >> size >> std::ws;
  std::getline(words, job);
  if (magic != kMagic || job != options_.job || guests_.count(rank) > 0) return;
  guests_[rank] = {size, std::move(line)};
}

}  // namespace ringd::client
