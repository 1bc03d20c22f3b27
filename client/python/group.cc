// Groups of ranks, for Python.
#include <vector>

#include "client/python/core.h"

namespace ringd::python {
namespace {

PyObject* CheckGroupCode(PyObject* module, int code) {
  if (code == RINGD_INTERRUPTED && PyErr_CheckSignals() != 0) return nullptr;
  return NoneOrRaise(module, code);
}

}  // namespace

// group_register(ranks, timeout_us) -> group; ranks: an ascending tuple
PyObject* GroupRegister(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 2, "group_register")) return nullptr;
  Reader reader(arguments + 1);
  const int64_t timeout_us = reader.Int();
  if (!reader.good()) return nullptr;
  int64_t inline_room[64];
  int64_t* heap = nullptr;
  Py_ssize_t n = 0;
  const int64_t* const numbers = ReadInts(arguments[0], inline_room, 64, &heap, &n);
  std::vector<int32_t> ranks;
  for (Py_ssize_t i = 0; numbers != nullptr && i < n; ++i) {
    ranks.push_back(numbers[i] < 0 || numbers[i] > INT32_MAX ? -1
                                                             : static_cast<int32_t>(numbers[i]));
  }
  PyMem_Free(heap);
  if (numbers == nullptr) return nullptr;
  uint32_t group = 0;
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    const OnlyEndingSignals only_ending_signals;
    code =
        ringd_group_register(ranks.data(), static_cast<uint32_t>(ranks.size()), timeout_us, &group);
  }
  if (code != RINGD_OK) return CheckGroupCode(module, code);
  return PyLong_FromUnsignedLong(group);
}

// join(timeout_us) -> the rank that joined last
PyObject* Join(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 1, "join")) return nullptr;
  Reader reader(arguments);
  const int64_t timeout_us = reader.Int();
  if (!reader.good()) return nullptr;
  int32_t last_rank = 0;
  int code = RINGD_INTERRUPTED;
  while (code == RINGD_INTERRUPTED) {
    {
      const WithoutGil without_gil;
      code = ringd_join(timeout_us, &last_rank);
    }
    if (code == RINGD_INTERRUPTED && PyErr_CheckSignals() != 0) return nullptr;
  }
  if (code != RINGD_OK) return NoneOrRaise(module, code);
  return PyLong_FromLong(last_rank);
}

// group_unregister(group, timeout_us)
PyObject* GroupUnregister(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 2, "group_unregister")) return nullptr;
  Reader reader(arguments);
  const uint32_t group = reader.Uint32();
  const int64_t timeout_us = reader.Int();
  if (!reader.good()) return nullptr;
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    const OnlyEndingSignals only_ending_signals;
    code = ringd_group_unregister(group, timeout_us);
  }
  return CheckGroupCode(module, code);
}

}  // namespace ringd::python
