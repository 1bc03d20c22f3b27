// Bucket plans, and what their gradients lose on the way.
#include <vector>

#include "client/python/core.h"

namespace ringd::python {
namespace {

// The memory that the plan's C structs point into.
struct PlanArguments {
  std::vector<ringd_plan_bucket> buckets;
  std::vector<ringd_plan_tensor> tensors;
  std::vector<std::vector<int64_t>> shapes;
};

PyObject* ItemAsTuple(PyObject* list, Py_ssize_t index, Py_ssize_t length) {
  PyObject* const item = PyList_GetItem(list, index);
  if (item != nullptr && PyTuple_Check(item) && PyTuple_Size(item) == length) return item;
  PyErr_Format(PyExc_TypeError, "item %zd is not a tuple of %zd", index, length);
  return nullptr;
}

constexpr Py_ssize_t kBucketFields = 5;

// Items: (dtype, reduction, prescale, postscale, wire)
bool ReadBuckets(PyObject* list, PlanArguments* plan) {
  const Py_ssize_t n = PyList_Size(list);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* const item = ItemAsTuple(list, i, kBucketFields);
    if (item == nullptr) return false;
    PyObject* fields[kBucketFields];
    for (Py_ssize_t j = 0; j < kBucketFields; ++j) fields[j] = PyTuple_GetItem(item, j);
    Reader reader(fields);
    ringd_plan_bucket bucket{};
    bucket.dtype = reader.Uint32();
    bucket.reduction = reader.Uint32();
    bucket.prescale = reader.Float();
    bucket.postscale = reader.Float();
    bucket.wire = reader.Uint32();
    if (!reader.good()) return false;
    plan->buckets.push_back(bucket);
  }
  return true;
}

// Items: (name, shape, bucket)
bool ReadTensors(PyObject* list, PlanArguments* plan) {
  const Py_ssize_t n = PyList_Size(list);
  plan->shapes.resize(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* const item = ItemAsTuple(list, i, 3);
    if (item == nullptr) return false;
    PyObject* const fields[] = {PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 2)};
    Reader reader(fields);
    ringd_plan_tensor tensor{};
    tensor.name = reader.Text();
    tensor.bucket = reader.Uint32();
    if (!reader.good()) return false;
    int64_t inline_room[32];
    int64_t* heap = nullptr;
    Py_ssize_t ndim = 0;
    const int64_t* const dims = ReadInts(PyTuple_GetItem(item, 1), inline_room, 32, &heap, &ndim);
    if (dims != nullptr) plan->shapes[i].assign(dims, dims + ndim);
    PyMem_Free(heap);
    if (dims == nullptr) return false;
    tensor.shape = plan->shapes[i].data();
    tensor.ndim = static_cast<uint32_t>(ndim);
    plan->tensors.push_back(tensor);
  }
  return true;
}

}  // namespace

// plan_register(buckets, tensors, timeout_us, group = 0) -> plan
PyObject* PlanRegister(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (count != 4 && !HasCount(count, 3, "plan_register")) return nullptr;
  if (!PyList_Check(arguments[0]) || !PyList_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "plan_register() takes two lists");
    return nullptr;
  }
  PlanArguments given;
  Reader reader(arguments + 2);
  const int64_t timeout_us = reader.Int();
  const uint32_t group = count == 4 ? reader.Uint32() : 0;
  if (!reader.good() || !ReadBuckets(arguments[0], &given) || !ReadTensors(arguments[1], &given)) {
    return nullptr;
  }
  ringd_plan plan = 0;
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    const OnlyEndingSignals only_ending_signals;
    code = ringd_plan_register_in(group, given.buckets.data(),
                                  static_cast<uint32_t>(given.buckets.size()), given.tensors.data(),
                                  static_cast<uint32_t>(given.tensors.size()), timeout_us, &plan);
  }
  if (code == RINGD_INTERRUPTED && PyErr_CheckSignals() != 0) return nullptr;
  return code == RINGD_OK ? PyLong_FromUnsignedLong(plan) : RaiseLastError(module);
}

// plan_tensor_data(plan, index) -> address
PyObject* PlanTensorData(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 2, "plan_tensor_data")) return nullptr;
  Reader reader(arguments);
  const ringd_plan plan = reader.Uint32();
  const uint32_t index = reader.Uint32();
  if (!reader.good()) return nullptr;
  void* const data = ringd_plan_tensor_data(plan, index);
  return data == nullptr ? RaiseLastError(module) : PyLong_FromVoidPtr(data);
}

// plan_ready(plan, index)
PyObject* PlanReady(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 2, "plan_ready")) return nullptr;
  Reader reader(arguments);
  const ringd_plan plan = reader.Uint32();
  const uint32_t index = reader.Uint32();
  if (!reader.good()) return nullptr;
  return NoneOrRaise(module, ringd_plan_ready(plan, index));
}

// plan_flush(plan) -> number of tensors that were not ready
PyObject* PlanFlush(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 1, "plan_flush")) return nullptr;
  Reader reader(arguments);
  const ringd_plan plan = reader.Uint32();
  if (!reader.good()) return nullptr;
  uint32_t flushed = 0;
  const int code = ringd_plan_flush(plan, &flushed);
  return code == RINGD_OK ? PyLong_FromUnsignedLong(flushed) : RaiseLastError(module);
}

// plan_wait(plan, timeout_us)
PyObject* PlanWait(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 2, "plan_wait")) return nullptr;
  Reader reader(arguments);
  const ringd_plan plan = reader.Uint32();
  const int64_t timeout_us = reader.Int();
  if (!reader.good()) return nullptr;
  return NoneOrRaise(module, WaitInSlices(timeout_us, [plan](int64_t slice_us) {
                       return ringd_plan_wait(plan, slice_us);
                     }));
}

// plan_unregister(plan)
PyObject* PlanUnregister(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 1, "plan_unregister")) return nullptr;
  Reader reader(arguments);
  const ringd_plan plan = reader.Uint32();
  if (!reader.good()) return nullptr;
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    code = ringd_plan_unregister(plan);
  }
  return NoneOrRaise(module, code);
}

// round_to_wire(dtype, wire, data, residual, count): both addresses
PyObject* RoundToWire(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 5, "round_to_wire")) return nullptr;
  Reader reader(arguments);
  const uint32_t dtype = reader.Uint32();
  const uint32_t wire = reader.Uint32();
  void* const data = reader.Pointer();
  void* const residual = reader.Pointer();
  const auto elements = static_cast<uint64_t>(reader.Int());
  if (!reader.good()) return nullptr;
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    code = ringd_round_to_wire(dtype, wire, data, residual, elements);
  }
  return NoneOrRaise(module, code);
}

}  // namespace ringd::python
