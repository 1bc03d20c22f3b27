// The mutex of this code base: absl::Mutex with thread-safety annotations that ThreadSanitizer sees
// too (Debian's Abseil is not instrumented).
#ifndef RINGD_COMMON_SYNC_MUTEX_H_
#define RINGD_COMMON_SYNC_MUTEX_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#define RINGD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RINGD_TSAN 1
#endif
#endif

#ifdef RINGD_TSAN
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace ringd {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.Lock();
    Acquired();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    Releasing();
    mutex_.Unlock();
  }

 private:
  friend class CondVar;
  void Acquired() {
#ifdef RINGD_TSAN
    __tsan_acquire(this);
#endif
  }
  void Releasing() {
#ifdef RINGD_TSAN
    __tsan_release(this);
#endif
  }
  absl::Mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Condition variable for the mutex above. Wait in a loop.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mutex->Releasing();
    cond_.Wait(&mutex->mutex_);
    mutex->Acquired();
  }
  // Returns true when the timeout has passed.
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mutex->Releasing();
    const bool timed_out = cond_.WaitWithTimeout(&mutex->mutex_, timeout);
    mutex->Acquired();
    return timed_out;
  }
  void Signal() { cond_.Signal(); }
  void SignalAll() { cond_.SignalAll(); }

 private:
  absl::CondVar cond_;
};

}  // namespace ringd

#endif  // RINGD_COMMON_SYNC_MUTEX_H_
