// ringctl local.
#ifndef RINGD_CLIENT_CLI_LOCAL_LOCAL_VERBS_H_
#define RINGD_CLIENT_CLI_LOCAL_LOCAL_VERBS_H_

#include <vector>

#include "client/cli/verb.h"

namespace ringd::cli {

std::vector<Verb> LocalVerbs();  // up nodes exec start stop restart down

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_LOCAL_VERBS_H_
