// Shared by the files of the extension: errors, arguments, the GIL. CPython's limited API (3.10)
// only.
#ifndef RINGD_CLIENT_PYTHON_CORE_H_
#define RINGD_CLIENT_PYTHON_CORE_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>

#include <cstdint>
#include <initializer_list>

#include "client/c/ringd.h"

namespace ringd::python {

using Arguments = PyObject* const*;

// One slice of a wait: signals are looked at in between.
inline constexpr int64_t kSliceMicros = 100'000;

// Sets a Python exception from this thread's last error, made by what set_error_factory was given.
// Returns null.
PyObject* RaiseLastError(PyObject* module);
// TypeError unless there are `wanted` arguments.
bool HasCount(Py_ssize_t count, Py_ssize_t wanted, const char* function);

// None for RINGD_OK, else an exception.
PyObject* NoneOrRaise(PyObject* module, int code);

// Gives the GIL up for its life.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Registering can't be resumed, so only the signals that end a program interrupt it; others wait.
class OnlyEndingSignals {
 public:
  OnlyEndingSignals() {
    sigset_t others;
    sigfillset(&others);
    for (const int signal : {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
      sigdelset(&others, signal);
    }
    pthread_sigmask(SIG_BLOCK, &others, &before_);
  }
  ~OnlyEndingSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Calls wait(slice_us) without the GIL until it returns something else than "not yet", running
// Python's signal handlers in between. timeout_us < 0: no limit. Returns the code, or -1 with an
// exception set by a handler.
template <typename Wait>
int WaitInSlices(int64_t timeout_us, const Wait& wait) {
  struct Slices {
    explicit Slices(int64_t timeout_us) { ringd_set_slices_of(timeout_us); }
    ~Slices() { ringd_set_slices_of(0); }
  } const slices(timeout_us);
  while (true) {
    const int64_t slice_us =
        timeout_us >= 0 && timeout_us < kSliceMicros ? timeout_us : kSliceMicros;
    int code = RINGD_OK;
    {
      const WithoutGil without_gil;
      code = wait(slice_us);
    }
    if (code != RINGD_INTERRUPTED && code != RINGD_DEADLINE_EXCEEDED) return code;
    if (PyErr_CheckSignals() != 0) return -1;
    if (code == RINGD_INTERRUPTED) continue;
    if (timeout_us >= 0) {
      timeout_us -= slice_us;
      if (timeout_us <= 0) return code;
    }
  }
}

// Reads arguments one after the other; the first wrong one sets an exception, and good() is false
// from then on.
class Reader {
 public:
  explicit Reader(Arguments arguments) : next_(arguments) {}

  bool good() const { return good_; }
  PyObject* Next() { return *next_++; }
  int64_t Int();
  uint32_t Uint32();
  double Float();
  void* Pointer();
  // Null for None; otherwise valid as long as the argument. ValueError for a zero byte inside.
  const char* Text();

 private:
  Arguments next_;
  bool good_ = true;
};

// A sequence of integers. Null after an exception; else an array of *count numbers in `inline_room`
// (capacity numbers) or on the heap (*heap, to be freed by the caller with PyMem_Free).
int64_t* ReadInts(PyObject* tuple, int64_t* inline_room, Py_ssize_t capacity, int64_t** heap,
                  Py_ssize_t* count);

// Functions of group.cc.
PyObject* GroupRegister(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* Join(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* GroupUnregister(PyObject* module, Arguments arguments, Py_ssize_t count);

// Functions of plan.cc.
PyObject* PlanRegister(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* PlanTensorData(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* PlanReady(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* PlanFlush(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* PlanWait(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* PlanUnregister(PyObject* module, Arguments arguments, Py_ssize_t count);
PyObject* RoundToWire(PyObject* module, Arguments arguments, Py_ssize_t count);

}  // namespace ringd::python

#endif  // RINGD_CLIENT_PYTHON_CORE_H_
