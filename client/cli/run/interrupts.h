// Ctrl-C and its relatives, as events.
#ifndef RINGD_CLIENT_CLI_RUN_INTERRUPTS_H_
#define RINGD_CLIENT_CLI_RUN_INTERRUPTS_H_

#include <functional>
#include <thread>

#include "common/base/fd.h"
#include "common/sync/mutex.h"

namespace ringd::cli {

// Takes SIGINT, SIGTERM and (unless ignored) SIGHUP while it lives and reports them on a thread of
// its own.
//
// Life: construct before any other thread is started (they inherit the mask); one at a time.
// Thread-safe.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // The first one that came; 0: none.
  int first_signal() const;

  // Calls handler(count) for each, counting from 1, those that came before included; on the thread
  // of this object. Blocks until a call of the handler before has returned.
  void SetHandler(std::function<void(int)> handler);

 private:
  void Run();
  void Deliver();

  UniqueFd signals_;
  UniqueFd wake_;
  mutable Mutex mu_;
  int first_signal_ ABSL_GUARDED_BY(mu_) = 0;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  int delivered_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  CondVar idle_;
  std::function<void(int)> handler_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_INTERRUPTS_H_
