// Numbers for named operations that have run before, so that notes needn't repeat their names.
#ifndef RINGD_DAEMON_ENGINE_NAMES_NAME_TABLE_H_
#define RINGD_DAEMON_ENGINE_NAMES_NAME_TABLE_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace ringd::daemon {

// The same on all nodes of a group after the same orders: each order of an operation without a
// number gives it the next one. Numbers are never used twice. The newest kNames operations may be
// spoken of by number; as many again are still understood, since a node has at most
// arena::kSlotCount operations under way when it speaks. Long names and forms get no number.
//
// Thread-bound.
class NameTable {
 public:
  static constexpr uint32_t kNames = 65536;
  static constexpr size_t kMaxBytes = 1024;  // Of a name with its form.

  struct Operation {
    std::string name;
    std::string form;
  };

  // 0: it has no number.
  uint32_t Find(absl::string_view name, absl::string_view form) const;
  // Null: no such number (any more).
  const Operation* Lookup(uint32_t id) const;
  // What is ordered next. REQUIRES: Find is 0.
  void Add(absl::string_view name, absl::string_view form);

 private:
  uint32_t first_ = 1;  // Number of the oldest one kept.
  std::deque<Operation> operations_;
  absl::flat_hash_map<std::string, uint32_t> newest_;  // By name.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_NAMES_NAME_TABLE_H_
