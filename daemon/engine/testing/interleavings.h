// Exhaustive search through all interleavings of a small model.
#ifndef RINGD_DAEMON_ENGINE_TESTING_INTERLEAVINGS_H_
#define RINGD_DAEMON_ENGINE_TESTING_INTERLEAVINGS_H_

#include <functional>
#include <optional>
#include <set>
#include <vector>

namespace ringd::daemon {

// Visits every state that the processes' steps can reach. step(state, process): the next state, or
// nothing while that process is blocked or done. Returns whether some state is `lost`.
template <typename State>
bool CanReach(const State& start, int process_count,
              const std::function<std::optional<State>(State, int)>& step,
              const std::function<bool(const State&)>& lost) {
  std::set<State> seen = {start};
  std::vector<State> open = {start};
  while (!open.empty()) {
    const State state = open.back();
    open.pop_back();
    if (lost(state)) return true;
    for (int process = 0; process < process_count; ++process) {
      const std::optional<State> next = step(state, process);
      if (next.has_value() && seen.insert(*next).second) open.push_back(*next);
    }
  }
  return false;
}

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_TESTING_INTERLEAVINGS_H_
