// Options of a program from one table: default < config file < environment < flag.
#ifndef RINGD_COMMON_CONFIG_CONFIG_H_
#define RINGD_COMMON_CONFIG_CONFIG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ringd {

// A table of options. Long flags are the keys with '-' for '_' ("--data-address" is data_address);
// the environment's names are RINGD_ and the key in capitals; the file is TOML, either flat or with
// the keys under [PROGRAM].
//
// Thread-compatible: external synchronisation.
class Config {
 public:
  // program: "ringd", "ringd-scheduler" or "ringctl": names the file's section.
  explicit Config(std::string program);

  // Binds a key to *value, whose present content is the default. REQUIRES: keys unique, value
  // outlives this.
  void Add(const std::string& key, std::string* value, const std::string& help);
  void Add(const std::string& key, int* value, const std::string& help);
  void Add(const std::string& key, int64_t* value,
           const std::string& help);  // Sizes: "256MB" (1,024-based) too.
  void Add(const std::string& key, bool* value,
           const std::string& help);  // Flag without argument, or =true/false.
  void Add(const std::string& key, absl::Duration* value,
           const std::string& help);  // "30s", "5m", "250ms", "1h".
  void Add(const std::string& key, std::vector<std::string>* value,
           const std::string& help);  // Repeatable; TOML array.

  // Reads --config FILE or RINGD_CONFIG or, where it exists, `default_file`, then the environment,
  // then argv. Understands --help and --version (text in *output, then CANCELLED). Keys of the
  // other programs' sections are ignored; an unknown key is INVALID_ARGUMENT:
  // "/etc/ringd/ringd.toml: unknown key 'slot' (did you mean 'slots'?)". Messages name the key and
  // where it stands, not the program. Returns the words after the options or after "--".
  absl::StatusOr<std::vector<std::string>> Parse(int argc, const char* const* argv,
                                                 const std::string& default_file,
                                                 std::string* output);

  // Effective values as TOML with a comment that says where each came from.
  std::string Dump() const;

 private:
  struct Option {
    std::string key;
    std::string help;
    bool is_flag = false;
    bool repeatable = false;
    std::function<absl::Status(const std::string&, bool append)>
        set;                           // Message without key and source.
    std::function<std::string()> get;  // TOML literal.
    std::string source = "default";
  };
  Option* Find(const std::string& key);
  absl::Status ReadFile(const std::string& path);
  absl::Status ReadEnvironment();
  absl::StatusOr<std::vector<std::string>> ReadFlags(const std::vector<std::string>& words);
  // node: a toml::node, kept out of this header.
  absl::Status SetFromToml(Option* option, const std::string& path, const void* node);
  absl::Status UnknownKey(const std::string& where, const std::string& what,
                          const std::string& key) const;
  std::string Help() const;

  std::string program_;
  std::vector<Option> options_;
};

// "256MB", "1KB", "4096": bytes, 1,024-based.   "1gbit", "100mbit": bits a second.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);
// The nearest of `words` to `word`, or "" if none is near: for "did you mean".
std::string NearestWord(const std::string& word, const std::vector<std::string>& words);

// Where a private (not shared) instance keeps things, from HOME, XDG_RUNTIME_DIR, TMPDIR.
struct UserPaths {
  std::string config_file;      // ~/.config/ringd/ringd.toml
  std::string run_directory;    // $XDG_RUNTIME_DIR/ringd or TMPDIR/ringd-UID
  std::string state_directory;  // ~/.local/state/ringd
};
UserPaths GetUserPaths();

}  // namespace ringd

#endif  // RINGD_COMMON_CONFIG_CONFIG_H_
