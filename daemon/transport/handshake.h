// The messages of the data port's handshake (proto/wire.h): made, checked, nothing sent.
//
// Thread-compatible: external synchronisation.
#ifndef RINGD_DAEMON_TRANSPORT_HANDSHAKE_H_
#define RINGD_DAEMON_TRANSPORT_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/wire.h"

namespace ringd::daemon {

inline constexpr size_t kJobKeyBytes = 32;

// job: 1 to 63 bytes without a zero.
wire::Hello MakeHello(const std::string& job, uint64_t generation, int from_node, int to_node,
                      uint16_t group = 0);
// INVALID_ARGUMENT: magic, version or job name are not as they must be.
absl::Status CheckHello(const wire::Hello& hello);
std::string HelloJob(const wire::Hello& hello);

wire::Challenge MakeChallenge(const std::string& key, const wire::Hello& hello);
// Whether the acceptor holds the key.
bool CheckChallenge(const std::string& key, const wire::Hello& hello,
                    const wire::Challenge& challenge);

wire::Proof MakeProof(const std::string& key, const wire::Hello& hello,
                      const wire::Challenge& challenge);
// Whether the dialler holds the key.
bool CheckProof(const std::string& key, const wire::Hello& hello, const wire::Challenge& challenge,
                const wire::Proof& proof);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_HANDSHAKE_H_
