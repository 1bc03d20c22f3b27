// What the ranks of `ringctl bench` print, as people and programs read it.
#ifndef RINGD_CLIENT_CLI_BENCH_BENCH_ROWS_H_
#define RINGD_CLIENT_CLI_BENCH_BENCH_ROWS_H_

#include <string>

#include "nlohmann/json.hpp"

namespace ringd::cli {

// Takes rank 0's standard output (client/python/ringd/bench/__main__.py says what it prints), in
// pieces as they come.
//
// Thread-compatible: external synchronisation.
class BenchRows {
 public:
  struct Text {
    std::string out;    // Lines of the table.
    std::string notes;  // For standard error.
  };
  Text Add(const std::string& data);

  // All rows, as they came: an array.
  const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  void AddLine(const std::string& line, Text* text);

  std::string held_;  // An unfinished line.
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_BENCH_BENCH_ROWS_H_
