// ringd._core: libringd.so for Python. Numbers and addresses go in; what they mean is
// ringd/_ops.py's.
#include "client/python/core.h"

#include <cstdio>
#include <cstring>
#include <vector>

namespace ringd::python {
namespace {

constexpr uint64_t kLongCopyBytes = 64u << 10;  // Above, a copy gives the GIL up.
constexpr int64_t kGilWaitMicros =
    20;  // Taking the GIL back costs up to 5 ms: wait this long before.
constexpr Py_ssize_t kOperationArguments = 16;  // And the group and `wire`, unless they are 0.
constexpr Py_ssize_t kMaxOperationArguments = kOperationArguments + 2;

struct State {
  PyObject* error_factory;
};

State* StateOf(PyObject* module) { return static_cast<State*>(PyModule_GetState(module)); }

uint32_t ElementBytes(uint32_t dtype) {
  constexpr uint8_t kBytes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
  return dtype < sizeof(kBytes) ? kBytes[dtype] : 0;
}

PyObject* SetErrorFactory(PyObject* module, PyObject* factory) {
  State* const state = StateOf(module);
  PyObject* const old = state->error_factory;
  Py_INCREF(factory);
  state->error_factory = factory;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// str(the exception that is set), which is cleared, as far as it fits.
void TakeExceptionText(char* answer, size_t capacity) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const text = value == nullptr ? nullptr : PyObject_Str(value);
  const char* const bytes = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, nullptr);
  std::snprintf(answer, capacity, "%s", bytes == nullptr ? "an exception" : bytes);
  PyErr_Clear();
  for (PyObject* const object : {text, type, value, traceback}) Py_XDECREF(object);
}

// ringd_exchange by exchange(key, text or None) -> text.
int CallExchange(void* function, const char* key, const char* text, char* answer, size_t capacity) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const result = PyObject_CallFunction(static_cast<PyObject*>(function), "sz", key, text);
  Py_ssize_t bytes = 0;
  const char* got =
      result == nullptr || text != nullptr ? nullptr : PyUnicode_AsUTF8AndSize(result, &bytes);
  const bool good = result != nullptr && (text != nullptr || got != nullptr);
  if (!good) {
    TakeExceptionText(answer, capacity);
  } else if (got != nullptr) {
    std::snprintf(answer, capacity, "%s", got);
  }
  Py_XDECREF(result);
  PyGILState_Release(state);
  return good ? 0 : 1;
}

// init(socket or None, timeout_us, standalone, exchange or None)
PyObject* Init(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 4, "init")) return nullptr;
  Reader reader(arguments);
  ringd_init_options options{.size = sizeof(options)};
  options.socket = reader.Text();
  options.timeout_us = reader.Int();
  options.standalone = static_cast<int32_t>(reader.Int());
  if (!reader.good()) return nullptr;
  if (arguments[3] != Py_None) {
    options.exchange = CallExchange;
    options.exchange_context = arguments[3];
  }
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    code = ringd_init(&options);
  }
  return NoneOrRaise(module, code);
}

PyObject* Shutdown(PyObject* module, PyObject*) {
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    code = ringd_shutdown();
  }
  return NoneOrRaise(module, code);
}

// launcher() -> "ringctl", "torchrun", ..., or None
PyObject* Launcher(PyObject*, PyObject*) {
  const char* const name = ringd_launcher();
  if (name == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromString(name);
}

PyObject* IsInitialized(PyObject*, PyObject*) { return PyBool_FromLong(ringd_is_initialized()); }

// (rank, size, local_rank, local_size, node_rank, node_count, generation, job, node)
PyObject* Info(PyObject* module, PyObject*) {
  ringd_info info{.size = sizeof(info)};
  if (ringd_get_info(&info) != RINGD_OK) return RaiseLastError(module);
  return Py_BuildValue("(iiiiiiKss)", info.rank, info.world_size, info.local_rank, info.local_size,
                       info.node_rank, info.node_count,
                       static_cast<unsigned long long>(info.generation), info.job, info.node);
}

PyObject* Counters(PyObject* module, PyObject*) {
  ringd_counters counters{.size = sizeof(counters)};
  if (ringd_get_counters(&counters) != RINGD_OK) return RaiseLastError(module);
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  return Py_BuildValue(
      "{sKsKsKsKsKsKsKsK}", "operations", number(counters.operations), "bytes_reduced",
      number(counters.bytes_reduced), "bytes_copied", number(counters.bytes_copied),
      "negotiation_messages", number(counters.negotiation_messages), "arena_bytes",
      number(counters.arena_bytes), "stalls", number(counters.stalls), "generation",
      number(counters.generation), "backstops", number(counters.backstops));
}

// allocate(bytes) -> address
PyObject* Allocate(PyObject* module, PyObject* argument) {
  const size_t bytes = PyLong_AsSize_t(argument);
  if (PyErr_Occurred() != nullptr) return nullptr;
  void* pointer = nullptr;
  {
    const WithoutGil without_gil;
    pointer = ringd_allocate(bytes);
  }
  return pointer == nullptr ? RaiseLastError(module) : PyLong_FromVoidPtr(pointer);
}

// free(address)
PyObject* Free(PyObject* module, PyObject* argument) {
  void* const pointer = PyLong_AsVoidPtr(argument);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return NoneOrRaise(module, ringd_free(pointer));
}

// address(array.__array_struct__) -> where its data lie. Ten times as fast as array.ctypes.data.
PyObject* Address(PyObject*, PyObject* capsule) {
  struct ArrayInterface {  // PyArrayInterface of NumPy's array interface protocol, version 3.
    int two, dimension_count;
    char kind;
    int item_bytes, flags;
    Py_ssize_t *shape, *strides;
    void* data;
  };
  const auto* const array = static_cast<ArrayInterface*>(PyCapsule_GetPointer(capsule, nullptr));
  if (array == nullptr) return nullptr;
  if (array->two != 2) {
    PyErr_SetString(PyExc_TypeError, "address() takes an __array_struct__");
    return nullptr;
  }
  return PyLong_FromVoidPtr(array->data);
}

// Memory of one operation's arguments.
struct OperationRoom {
  int64_t dims[32];
  int64_t* heap = nullptr;
  ~OperationRoom() { PyMem_Free(heap); }
};

// (operation, dtype, reduction, root, input, count, output, output_count, shape, counts, name,
// site, prescale, postscale, tag, flags, group, wire); counts: None or the bytes of native int64.
bool ReadOperation(Arguments arguments, Py_ssize_t count, OperationRoom* room,
                   ringd_operation* operation) {
  Reader reader(arguments);
  *operation = ringd_operation{.size = sizeof(ringd_operation)};
  operation->operation = reader.Uint32();
  operation->dtype = reader.Uint32();
  operation->reduction = reader.Uint32();
  operation->root = static_cast<int32_t>(reader.Int());
  operation->input = reader.Pointer();
  operation->count = static_cast<uint64_t>(reader.Int());
  operation->output = reader.Pointer();
  operation->output_count = static_cast<uint64_t>(reader.Int());
  if (!reader.good()) return false;
  Py_ssize_t ndim = 0;
  operation->shape = ReadInts(reader.Next(), room->dims, 32, &room->heap, &ndim);
  if (operation->shape == nullptr) return false;
  operation->ndim = static_cast<uint32_t>(ndim);
  PyObject* const counts = reader.Next();
  if (counts != Py_None) {
    char* bytes = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(counts, &bytes, &length) != 0) return false;
    operation->counts = reinterpret_cast<const int64_t*>(bytes);
    operation->count_count = static_cast<uint32_t>(length / sizeof(int64_t));
  }
  operation->name = reader.Text();
  operation->site = reader.Text();
  operation->prescale = reader.Float();
  operation->postscale = reader.Float();
  operation->tag = reader.Uint32();
  operation->flags = reader.Uint32();
  if (count > kOperationArguments) operation->group = reader.Uint32();
  if (count > kOperationArguments + 1) operation->wire = reader.Uint32();
  return reader.good();
}

bool HasOperation(Py_ssize_t count, const char* function) {
  const bool is_known = count >= kOperationArguments && count <= kMaxOperationArguments;
  return is_known || HasCount(count, kOperationArguments, function);
}

bool IsLong(const ringd_operation& operation) {
  return operation.count * ElementBytes(operation.dtype) > kLongCopyBytes;
}

PyObject* Submit(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasOperation(count, "submit")) return nullptr;
  OperationRoom room;
  ringd_operation operation;
  if (!ReadOperation(arguments, count, &room, &operation)) return nullptr;
  ringd_handle handle = 0;
  int code = RINGD_OK;
  if (IsLong(operation)) {
    const WithoutGil without_gil;
    code = ringd_submit(&operation, &handle);
  } else {
    code = ringd_submit(&operation, &handle);
  }
  return code == RINGD_OK ? PyLong_FromUnsignedLongLong(handle) : RaiseLastError(module);
}

// run(submit's arguments) -> 0 if it is over, else a handle to wait for. Short: it keeps the GIL.
PyObject* Run(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasOperation(count, "run")) return nullptr;
  OperationRoom room;
  ringd_operation operation;
  if (!ReadOperation(arguments, count, &room, &operation)) return nullptr;
  ringd_handle handle = 0;
  int code = RINGD_OK;
  if (IsLong(operation)) {
    const WithoutGil without_gil;
    code = ringd_submit(&operation, &handle);
  } else {
    code = ringd_run(&operation, kGilWaitMicros, &handle);
  }
  if (code != RINGD_OK && handle == 0) return RaiseLastError(module);
  return PyLong_FromUnsignedLongLong(handle);
}

// submit_batch(list of tuples like submit's arguments) -> list of handles
PyObject* SubmitBatch(PyObject* module, PyObject* list) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "submit_batch() takes a list");
    return nullptr;
  }
  const Py_ssize_t n = PyList_Size(list);
  std::vector<OperationRoom> rooms(static_cast<size_t>(n));
  std::vector<ringd_operation> operations(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* const tuple = PyList_GetItem(list, i);
    const Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    if (count < kOperationArguments || count > kMaxOperationArguments) {
      PyErr_SetString(PyExc_TypeError, "submit_batch() takes tuples of submit()'s arguments");
      return nullptr;
    }
    PyObject* fields[kMaxOperationArguments];
    for (Py_ssize_t j = 0; j < count; ++j) fields[j] = PyTuple_GetItem(tuple, j);
    if (!ReadOperation(fields, count, &rooms[i], &operations[i])) return nullptr;
  }
  std::vector<ringd_handle> handles(static_cast<size_t>(n));
  int code = RINGD_OK;
  {
    const WithoutGil without_gil;
    code = ringd_submit_batch(operations.data(), operations.size(), handles.data());
  }
  if (code != RINGD_OK) return RaiseLastError(module);
  PyObject* const result = PyList_New(n);
  for (Py_ssize_t i = 0; result != nullptr && i < n; ++i) {
    PyObject* const handle = PyLong_FromUnsignedLongLong(handles[i]);
    if (handle == nullptr || PyList_SetItem(result, i, handle) != 0) {
      Py_DECREF(result);
      return nullptr;
    }
  }
  return result;
}

// poll(handle) -> whether it is over
PyObject* Poll(PyObject* module, PyObject* argument) {
  const ringd_handle handle = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const int over = ringd_poll(handle);
  return over < 0 ? RaiseLastError(module) : PyBool_FromLong(over);
}

// wait(handle, timeout_us, copies): copies: the result is long and copied out by the wait.
PyObject* Wait(PyObject* module, Arguments arguments, Py_ssize_t count) {
  if (!HasCount(count, 3, "wait")) return nullptr;
  const ringd_handle handle = PyLong_AsUnsignedLongLong(arguments[0]);
  Reader reader(arguments + 1);
  const int64_t timeout_us = reader.Int();
  const bool copies = reader.Int() != 0;
  if (PyErr_Occurred() != nullptr) return nullptr;
  int code = RINGD_DEADLINE_EXCEEDED;
  if (!copies) {
    code = ringd_wait(handle,
                      timeout_us >= 0 && timeout_us < kGilWaitMicros ? timeout_us : kGilWaitMicros);
  }
  if (code == RINGD_DEADLINE_EXCEEDED || code == RINGD_INTERRUPTED) {
    code = WaitInSlices(timeout_us,
                        [handle](int64_t slice_us) { return ringd_wait(handle, slice_us); });
  }
  return NoneOrRaise(module, code);
}

PyObject* Version(PyObject*, PyObject*) { return PyUnicode_FromString(ringd_version()); }

PyCFunction Fast(PyObject* (*function)(PyObject*, Arguments, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

int Traverse(PyObject* module, visitproc visit, void* arg) {
  State* const state = StateOf(module);
  if (state != nullptr) Py_VISIT(state->error_factory);
  return 0;
}

int Clear(PyObject* module) {
  State* const state = StateOf(module);
  if (state != nullptr) Py_CLEAR(state->error_factory);
  return 0;
}

PyModuleDef* Definition() {
  static PyMethodDef methods[] = {
      {"set_error_factory", SetErrorFactory, METH_O, nullptr},
      {"init", Fast(Init), METH_FASTCALL, nullptr},
      {"shutdown", Shutdown, METH_NOARGS, nullptr},
      {"is_initialized", IsInitialized, METH_NOARGS, nullptr},
      {"launcher", Launcher, METH_NOARGS, nullptr},
      {"info", Info, METH_NOARGS, nullptr},
      {"counters", Counters, METH_NOARGS, nullptr},
      {"allocate", Allocate, METH_O, nullptr},
      {"free", Free, METH_O, nullptr},
      {"address", Address, METH_O, nullptr},
      {"submit", Fast(Submit), METH_FASTCALL, nullptr},
      {"run", Fast(Run), METH_FASTCALL, nullptr},
      {"submit_batch", SubmitBatch, METH_O, nullptr},
      {"poll", Poll, METH_O, nullptr},
      {"wait", Fast(Wait), METH_FASTCALL, nullptr},
      {"group_register", Fast(GroupRegister), METH_FASTCALL, nullptr},
      {"join", Fast(Join), METH_FASTCALL, nullptr},
      {"group_unregister", Fast(GroupUnregister), METH_FASTCALL, nullptr},
      {"plan_register", Fast(PlanRegister), METH_FASTCALL, nullptr},
      {"plan_tensor_data", Fast(PlanTensorData), METH_FASTCALL, nullptr},
      {"plan_ready", Fast(PlanReady), METH_FASTCALL, nullptr},
      {"plan_flush", Fast(PlanFlush), METH_FASTCALL, nullptr},
      {"plan_wait", Fast(PlanWait), METH_FASTCALL, nullptr},
      {"plan_unregister", Fast(PlanUnregister), METH_FASTCALL, nullptr},
      {"round_to_wire", Fast(RoundToWire), METH_FASTCALL, nullptr},
      {"version", Version, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef_Slot slots[] = {{0, nullptr}};
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                   "ringd._core",
                                   "libringd.so for Python; use the functions of ringd instead.",
                                   sizeof(State),
                                   methods,
                                   slots,
                                   Traverse,
                                   Clear,
                                   nullptr};
  return &definition;
}

}  // namespace

PyObject* RaiseLastError(PyObject* module) {
  ringd_error error{.size = sizeof(error)};
  ringd_last_error(&error);
  PyObject* const factory = StateOf(module)->error_factory;
  if (factory == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, error.message);
    return nullptr;
  }
  const auto text = [](const char* bytes) {
    return PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(std::strlen(bytes)), "replace");
  };
  PyObject* const exception = PyObject_CallFunction(
      factory, "iNiNiiN", error.code, text(error.message), error.rank, text(error.node),
      error.exit_code, error.signal, text(error.stderr_tail));
  if (exception == nullptr) return nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
  return nullptr;
}

bool HasCount(Py_ssize_t count, Py_ssize_t wanted, const char* function) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, count);
  return false;
}

PyObject* NoneOrRaise(PyObject* module, int code) {
  if (code < 0) return nullptr;
  if (code != RINGD_OK) return RaiseLastError(module);
  Py_RETURN_NONE;
}

int64_t Reader::Int() {
  PyObject* const argument = Next();
  if (!good_) return 0;
  const long long value = PyLong_AsLongLong(argument);
  if (value == -1 && PyErr_Occurred() != nullptr) good_ = false;
  return value;
}

uint32_t Reader::Uint32() {
  const int64_t value = Int();
  if (good_ && (value < 0 || value > int64_t{UINT32_MAX})) {
    PyErr_Format(PyExc_OverflowError, "%lld is out of range", static_cast<long long>(value));
    good_ = false;
  }
  return static_cast<uint32_t>(value);
}

double Reader::Float() {
  PyObject* const argument = Next();
  if (!good_) return 0;
  const double value = PyFloat_AsDouble(argument);
  if (value == -1.0 && PyErr_Occurred() != nullptr) good_ = false;
  return value;
}

void* Reader::Pointer() {
  PyObject* const argument = Next();
  if (!good_) return nullptr;
  void* const value = PyLong_AsVoidPtr(argument);
  if (value == nullptr && PyErr_Occurred() != nullptr) good_ = false;
  return value;
}

const char* Reader::Text() {
  PyObject* const argument = Next();
  if (!good_ || argument == Py_None) return nullptr;
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(argument, &bytes);
  if (text != nullptr && std::strlen(text) == static_cast<size_t>(bytes)) return text;
  if (text != nullptr) PyErr_SetString(PyExc_ValueError, "a text has a zero byte inside");
  good_ = false;
  return nullptr;
}

int64_t* ReadInts(PyObject* tuple, int64_t* inline_room, Py_ssize_t capacity, int64_t** heap,
                  Py_ssize_t* count) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "a tuple of integers is needed");
    return nullptr;
  }
  *count = PyTuple_Size(tuple);
  int64_t* numbers = inline_room;
  if (*count > capacity) {
    *heap = static_cast<int64_t*>(PyMem_Malloc(static_cast<size_t>(*count) * sizeof(int64_t)));
    numbers = *heap;
    if (numbers == nullptr) {
      PyErr_NoMemory();
      return nullptr;
    }
  }
  for (Py_ssize_t i = 0; i < *count; ++i) {
    numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (numbers[i] == -1 && PyErr_Occurred() != nullptr) return nullptr;
  }
  return numbers;
}

}  // namespace ringd::python

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(ringd::python::Definition()); }
