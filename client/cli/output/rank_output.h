// Where the ranks' output goes: standard output and standard error of ringctl.
#ifndef RINGD_CLIENT_CLI_OUTPUT_RANK_OUTPUT_H_
#define RINGD_CLIENT_CLI_OUTPUT_RANK_OUTPUT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "client/cli/output/line_prefixer.h"
#include "proto/cluster.pb.h"

namespace ringd::cli {

// Writes log chunks to two descriptors: as they are for one rank, with a prefix a line for several.
// After a stream of chunks broke, Restart() makes the next one, which begins at the beginning, skip
// what was written already.
//
// Thread-compatible: external synchronisation.
class RankOutput {
 public:
  // Takes what a rank wrote to its standard output. False: nobody wants more.
  using Taker = std::function<bool(int rank, const std::string& data)>;

  // take: gets standard output as it is, instead of out_fd; empty: nobody does.
  RankOutput(int out_fd, int err_fd, bool prefix, Taker take = nullptr);

  // False: the reader of one of the descriptors has gone, or the taker wants no more.
  bool Write(const ringd::cluster::v1::LogChunk& chunk);
  void Restart() { to_skip_ = received_; }
  // Unfinished last lines.
  bool Finish();

 private:
  bool WriteTo(bool standard_error, const std::string& text);

  const int out_fd_;
  const int err_fd_;
  const bool prefix_;
  const Taker take_;
  std::map<int, uint64_t> received_;  // Bytes by rank.
  std::map<int, uint64_t> to_skip_;
  std::map<std::pair<int, bool>, LinePrefixer> prefixers_;  // By rank, is standard error.
};

// Writes all of it. False: the reader has gone.
bool WriteFully(int fd, const std::string& text);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_OUTPUT_RANK_OUTPUT_H_
