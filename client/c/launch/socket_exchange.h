// Where torchrun has a store for them, the nodes of mpirun and srun meet at a port of rank 0's.
#ifndef RINGD_CLIENT_C_LAUNCH_SOCKET_EXCHANGE_H_
#define RINGD_CLIENT_C_LAUNCH_SOCKET_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "client/c/launch/nodes.h"
#include "common/base/fd.h"

namespace ringd::client {

// Each other node has one connection to rank 0's: a line that says who it is, and a line back. Who
// can reach the port while the job starts can join it, as with torchrun's store: for networks where
// nobody else is. Its port is free again afterwards.
//
// Thread-compatible: external synchronisation.
class SocketExchange {
 public:
  struct Options {
    std::string job;
    std::string host;  // Name or address of rank 0's machine, as others reach it.
    int32_t port = 0;
    bool is_host = false;    // Rank 0 is here.
    int64_t timeout_us = 0;  // For the others to come.
  };
  explicit SocketExchange(Options options);

  // The host puts and gets for each of the others (InvitationKey, SizeKey of nodes.h); these put
  // and get their own, in this order. As long as this lives.
  Exchange exchange() { return {&SocketExchange::Call, this}; }

 private:
  static int Call(void* context, const char* key, const char* text, char* answer,
                  size_t answer_bytes);
  // Empty: good.
  std::string Listen();
  std::string Connect();
  std::string Put(const std::string& key, const std::string& text);
  std::string Get(const std::string& key, std::string* text);
  std::string AwaitGuest(const std::string& key);
  void Accept();
  std::string Address() const { return options_.host + ":" + std::to_string(options_.port); }

  struct Guest {
    std::string size;
    UniqueFd socket;
  };

  const Options options_;
  const int64_t deadline_us_;
  UniqueFd socket_;                      // The host's listens.
  std::map<std::string, Guest> guests_;  // By first rank.
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_LAUNCH_SOCKET_EXCHANGE_H_
