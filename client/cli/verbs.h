// The table of verbs, a function for each group of them.
#ifndef RINGD_CLIENT_CLI_VERBS_H_
#define RINGD_CLIENT_CLI_VERBS_H_

#include <vector>

#include "client/cli/verb.h"

namespace ringd::cli {

std::vector<Verb> RunVerbs();      // run submit
std::vector<Verb> BenchVerbs();    // bench
std::vector<Verb> JobVerbs();      // list describe wait logs cancel signal
std::vector<Verb> ClusterVerbs();  // nodes here version config completion
std::vector<Verb> CertsVerbs();    // certs init, add

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_VERBS_H_
