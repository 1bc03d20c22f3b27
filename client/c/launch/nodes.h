// How the nodes of a job that another launcher started become one.
#ifndef RINGD_CLIENT_C_LAUNCH_NODES_H_
#define RINGD_CLIENT_C_LAUNCH_NODES_H_

#include <cstdint>
#include <string>

#include "client/c/launch/launcher.h"
#include "client/c/ringd.h"

namespace ringd::client {

// ringd_init's.
struct Exchange {
  ringd_exchange call = nullptr;
  void* context = nullptr;

  int Put(const std::string& key, const std::string& text) const;
  // `rank` is the first one of the node that should put it, for the message.
  int Get(const std::string& key, int32_t rank, std::string* text) const;
};

// Starts `ringd-worker attach` on this node, and with it the job's part here: of the cluster that
// the user's settings name, if this node is of one; else of a private one. Over several nodes the
// one of rank 0 then has the scheduler, and the others learn of it by the exchange. Blocks until it
// serves; at most timeout_us. Where it can't, one serves that tells all ranks of this node why.
int StartNode(const Launch& launch, const Exchange& exchange, int64_t timeout_us);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_LAUNCH_NODES_H_
