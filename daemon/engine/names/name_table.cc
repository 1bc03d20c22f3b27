#include "daemon/engine/names/name_table.h"

#include <limits>

namespace ringd::daemon {

uint32_t NameTable::Find(absl::string_view name, absl::string_view form) const {
  const auto found = newest_.find(name);
  if (found == newest_.end()) return 0;
  const uint32_t id = found->second;
  if (id + kNames < first_ + operations_.size()) return 0;  // Soon forgotten.
  return operations_[id - first_].form == form ? id : 0;
}

const NameTable::Operation* NameTable::Lookup(uint32_t id) const {
  if (id < first_ || id - first_ >= operations_.size()) return nullptr;
  return &operations_[id - first_];
}

void NameTable::Add(absl::string_view name, absl::string_view form) {
  const uint64_t next = uint64_t{first_} + operations_.size();
  if (name.size() + form.size() > kMaxBytes || next > std::numeric_limits<uint32_t>::max() / 2) {
    return;
  }
  operations_.push_back({std::string(name), std::string(form)});
  newest_[std::string(name)] = static_cast<uint32_t>(next);
  if (operations_.size() <= 2 * kNames) return;
  const auto oldest = newest_.find(operations_.front().name);
  if (oldest != newest_.end() && oldest->second == first_) newest_.erase(oldest);
  operations_.pop_front();
  ++first_;
}

}  // namespace ringd::daemon
