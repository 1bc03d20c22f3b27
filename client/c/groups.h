// The groups of a client: ids, as all ranks count them, and who is in them.
#ifndef RINGD_CLIENT_C_GROUPS_H_
#define RINGD_CLIENT_C_GROUPS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace ringd::client {

// Every rank makes and gives up the same groups in the same order, so that equal calls give equal
// ids on all of them: 1, 2, 3, ...; ids that were given up come back first, the oldest first. An id
// whose registration failed is not used again. Group 0, all ranks, is always there.
//
// Thread-safe.
class Groups {
 public:
  explicit Groups(int world_size);

  // The id of a group of these ranks that exists, or the next one. 0: it is that of all ranks.
  // False: there are arena::kMaxGroups.
  bool Choose(const std::vector<int32_t>& ranks, uint32_t* id);
  // The ranks have agreed on it.
  void Add(uint32_t id, const std::vector<int32_t>& ranks);
  // As often as it was added, but for the last time. False: once more would end it.
  bool Release(uint32_t id);
  // All ranks have given it up.
  void Remove(uint32_t id);

  // False: no such group. *rank: of the job's `job_rank` in the group, -1: no member.
  bool Find(uint32_t id, int job_rank, int32_t* rank, int32_t* size) const;
  // Empty: no such group.
  std::vector<int32_t> RanksOf(uint32_t id) const;

 private:
  struct Group {
    std::vector<int32_t> ranks;
    uint32_t references = 0;
  };
  mutable std::mutex mu_;
  std::map<uint32_t, Group> groups_;
  std::deque<uint32_t> freed_;
  uint32_t last_id_ = 0;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_GROUPS_H_
