// The C ABI: a thin shell over one client, the process's context.
#include "client/c/ringd.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/c/arena_client.h"
#include "client/c/connect.h"
#include "client/c/error.h"
#include "client/c/launch/attach_line.h"
#include "client/c/launch/launcher.h"
#include "client/c/plan.h"
#include "client/c/standalone.h"
#include "common/base/futex.h"
#include "common/base/types.h"
#include "common/base/version.h"
#include "common/reduce/wire_dtype.h"

namespace ringd::client {
namespace {

constexpr int64_t kDefaultInitMicros = 60'000'000;
// Under other launchers init() waits for the other ranks, too: for what they import and load.
constexpr int64_t kDefaultLaunchMicros = 300'000'000;
constexpr int64_t kShutdownMicros = 5'000'000;

// The one global of client/c. Calls run between Enter and Leave, so that shutdown never pulls the
// client from under them.
struct Context {
  std::atomic<ArenaClient*> client{nullptr};
  std::atomic<uint32_t> calls{0};

  std::mutex mu;  // Init, shutdown, and what follows.
  std::unique_ptr<ArenaClient> owned;
  std::unique_ptr<WorkerConnection> connection;
  std::unique_ptr<AttachLine> attach_line;  // From the first init on.
  // Arenas whose client is gone while callers still hold memory of theirs.
  std::vector<std::shared_ptr<ArenaMemory>> remains;
};

// Never destroyed: threads may still call when the process ends.
Context& TheContext() {
  static auto* const context = new Context;
  return *context;
}

int FailForked() {
  return Fail(Code::kForked,
              "this process is a fork of one that uses ringd: ringd works in the parent only; "
              "start children that need it with exec (multiprocessing: \"spawn\")");
}

// The client for the length of one call; null after Fail.
class Call {
 public:
  Call() {
    Context& context = TheContext();
    if (IsForkedChild()) {
      FailForked();
      return;
    }
    context.calls.fetch_add(1);
    entered_ = true;
    client_ = context.client.load();
    if (client_ == nullptr)
      Fail(Code::kNotInitialized, "ringd is not initialized: call init first");
  }
  ~Call() {
    if (entered_) TheContext().calls.fetch_sub(1);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  explicit operator bool() const { return client_ != nullptr; }
  ArenaClient* operator->() const { return client_; }
  static int code() { return LastError().code; }

 private:
  bool entered_ = false;
  ArenaClient* client_ = nullptr;
};

// Copies as much of a versioned struct as the caller knows of.
template <typename T>
int Export(const T& value, T* to) {
  if (to == nullptr || to->size < sizeof(uint32_t)) {
    return Fail(Code::kInvalidArgument, "the struct's size is not set");
  }
  const uint32_t size = to->size;
  std::memcpy(to, &value, std::min<size_t>(size, sizeof(T)));
  to->size = size;
  return RINGD_OK;
}

int OpenStandalone(ArenaClientOptions* options) {
  options->standalone = true;
  options->segment_bytes = arena::kMinBytes;
  options->info = ringd_info{.size = sizeof(ringd_info),
                             .world_size = 1,
                             .local_size = 1,
                             .node_count = 1,
                             .generation = 1};
  CopyText("standalone", options->info.job, sizeof(options->info.job));
  CopyText("localhost", options->info.node, sizeof(options->info.node));
  options->grow = [](uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes) {
    *segment_bytes = bytes;
    return CreateStandaloneSegment(bytes, false, fd);
  };
  return CreateStandaloneSegment(options->segment_bytes, true, &options->segment);
}

int OpenWorker(const std::string& path, int64_t timeout_us,
               std::unique_ptr<WorkerConnection>* connection, ArenaClientOptions* options) {
  const int code = WorkerConnection::Open(path, timeout_us, connection, options);
  if (code != RINGD_OK) return code;
  options->grow = [worker = connection->get()](uint64_t bytes, UniqueFd* fd,
                                               uint64_t* segment_bytes) {
    return worker->NeedSegment(bytes, fd, segment_bytes);
  };
  return RINGD_OK;
}

bool EnvironmentAsksForStandalone() {
  const char* const value = std::getenv("RINGD_STANDALONE");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// Which socket is this rank's worker's: the one that the caller or ringctl's worker names, or what
// another launcher's ranks agree on. Empty: none.
int FindSocket(const ringd_init_options& given, std::string* socket) {
  if (given.socket != nullptr) *socket = given.socket;
  if (given.socket != nullptr || given.standalone != 0) return RINGD_OK;
  Launch launch;
  if (const int code = FindLaunch(std::getenv, &launch); code != RINGD_OK) return code;
  if (launch.launcher.empty()) {
    const char* const name = std::getenv("RINGD_SOCKET");
    *socket = name == nullptr ? "" : name;
    return RINGD_OK;
  }
  Context& context = TheContext();
  const int64_t timeout_us = given.timeout_us > 0 ? given.timeout_us : kDefaultLaunchMicros;
  const int code = context.attach_line == nullptr
                       ? AttachLine::Open(launch, {given.exchange, given.exchange_context},
                                          timeout_us, &context.attach_line)
                       : context.attach_line->Return(launch, timeout_us);
  if (code == RINGD_OK) *socket = context.attach_line->worker_socket();
  return code;
}

int Initialize(const ringd_init_options& given) {
  std::string socket;
  if (const int code = FindSocket(given, &socket); code != RINGD_OK) return code;
  const bool standalone =
      given.standalone != 0 || (socket.empty() && EnvironmentAsksForStandalone());
  if (socket.empty() && !standalone) {
    return Fail(
        Code::kUnavailable,
        "no launcher has started this process (RINGD_SOCKET is not set, nor are torchrun's, "
        "mpirun's or srun's variables). Start it with `ringctl run -n N -- COMMAND`, or ask "
        "for a job of this process alone: init(standalone=True) or RINGD_STANDALONE=1");
  }
  Context& context = TheContext();
  ArenaClientOptions options;
  std::unique_ptr<WorkerConnection> connection;
  const int64_t timeout_us = given.timeout_us > 0 ? given.timeout_us : kDefaultInitMicros;
  int code =
      standalone ? OpenStandalone(&options) : OpenWorker(socket, timeout_us, &connection, &options);
  if (code != RINGD_OK) return code;
  std::unique_ptr<ArenaClient> client;
  code = ArenaClient::Create(std::move(options), &client);
  if (code != RINGD_OK) return code;
  context.connection = std::move(connection);
  context.owned = std::move(client);
  context.client.store(context.owned.get());
  return RINGD_OK;
}

void PruneRemainsLocked(Context& context) {
  std::erase_if(context.remains, [](const auto& memory) { return memory->caller_blocks() == 0; });
}

void TearDownLocked(Context& context) {
  context.client.store(nullptr);
  context.owned->Shutdown(kShutdownMicros);
  while (context.calls.load() != 0) {
    const timespec pause{.tv_sec = 0, .tv_nsec = 100'000};
    nanosleep(&pause, nullptr);
  }
  context.remains.push_back(context.owned->memory());
  context.owned.reset();
  context.connection.reset();
  if (context.attach_line != nullptr) context.attach_line->SayGoodbye();
  PruneRemainsLocked(context);
}

int FreeRemains(void* pointer) {
  Context& context = TheContext();
  std::lock_guard lock(context.mu);
  for (const auto& memory : context.remains) {
    const arena::Ref block = memory->RefOf(pointer);
    if (block == arena::kNullRef) continue;
    if (!memory->Free(block)) break;
    PruneRemainsLocked(context);
    return RINGD_OK;
  }
  return Fail(Code::kInvalidArgument, "ringd_free: not memory of ringd_allocate, or freed twice");
}

}  // namespace
}  // namespace ringd::client

using namespace ringd::client;  // NOLINT: the functions below are C.

int ringd_last_error(ringd_error* error) {
  const ringd_error& last = LastError();
  if (error != nullptr) Export(last, error);
  return last.code;
}

int ringd_abi_version(void) { return RINGD_ABI_VERSION; }

const char* ringd_version(void) { return ringd::kVersion; }

int ringd_init(const ringd_init_options* options) {
  if (IsForkedChild()) return FailForked();
  ringd_init_options given{};
  if (options != nullptr) {
    if (options->size < sizeof(uint32_t)) {
      return Fail(Code::kInvalidArgument, "ringd_init_options.size is not set");
    }
    std::memcpy(&given, options, std::min<size_t>(options->size, sizeof(given)));
  }
  Context& context = TheContext();
  std::lock_guard lock(context.mu);
  if (context.owned != nullptr) return RINGD_OK;
  return Initialize(given);
}

int ringd_shutdown(void) {
  if (IsForkedChild()) return FailForked();
  Context& context = TheContext();
  std::lock_guard lock(context.mu);
  if (context.owned != nullptr) TearDownLocked(context);
  return RINGD_OK;
}

const char* ringd_launcher(void) {
  static thread_local std::string name;
  Launch launch;
  if (FindLaunch(std::getenv, &launch) != RINGD_OK) return "unknown";
  name = launch.launcher;
  if (name.empty() && std::getenv("RINGD_SOCKET") != nullptr) name = "ringctl";
  return name.empty() ? nullptr : name.c_str();
}

int ringd_is_initialized(void) {
  return !IsForkedChild() && TheContext().client.load() != nullptr ? 1 : 0;
}

int ringd_get_info(ringd_info* info) {
  const Call client;
  return client ? Export(client->info(), info) : Call::code();
}

void* ringd_allocate(size_t bytes) {
  const Call client;
  return client ? client->Allocate(bytes) : nullptr;
}

int ringd_free(void* pointer) {
  if (pointer == nullptr) return RINGD_OK;
  if (IsForkedChild()) return FailForked();
  {
    const Call client;
    if (client && client->Free(pointer) == RINGD_OK) return RINGD_OK;
  }
  return FreeRemains(pointer);
}

int ringd_submit(const ringd_operation* operation, ringd_handle* handle) {
  const Call client;
  return client ? client->SubmitBatch(operation, 1, handle) : Call::code();
}

int ringd_submit_batch(const ringd_operation* operations, size_t n, ringd_handle* handles) {
  const Call client;
  return client ? client->SubmitBatch(operations, n, handles) : Call::code();
}

int ringd_poll(ringd_handle handle) {
  const Call client;
  return client ? client->Poll(handle) : -1;
}

int ringd_wait(ringd_handle handle, int64_t timeout_us) {
  const Call client;
  return client ? client->Wait(handle, timeout_us) : Call::code();
}

int ringd_run(const ringd_operation* operation, int64_t timeout_us, ringd_handle* handle) {
  const Call client;
  return client ? client->Run(*operation, timeout_us, handle) : Call::code();
}

int ringd_join(int64_t timeout_us, int32_t* last_rank) {
  const Call client;
  return client ? client->Join(timeout_us, last_rank) : Call::code();
}

int ringd_group_register(const int32_t* ranks, uint32_t n, int64_t timeout_us, uint32_t* group) {
  const Call client;
  return client ? client->RegisterGroup(ranks, n, timeout_us, group) : Call::code();
}

int ringd_group_unregister(uint32_t group, int64_t timeout_us) {
  const Call client;
  return client ? client->UnregisterGroup(group, timeout_us) : Call::code();
}

int ringd_plan_register(const ringd_plan_bucket* buckets, uint32_t bucket_count,
                        const ringd_plan_tensor* tensors, uint32_t tensor_count, int64_t timeout_us,
                        ringd_plan* plan) {
  return ringd_plan_register_in(0, buckets, bucket_count, tensors, tensor_count, timeout_us, plan);
}

int ringd_plan_register_in(uint32_t group, const ringd_plan_bucket* buckets, uint32_t bucket_count,
                           const ringd_plan_tensor* tensors, uint32_t tensor_count,
                           int64_t timeout_us, ringd_plan* plan) {
  const Call client;
  return client ? client->RegisterPlan(group, buckets, bucket_count, tensors, tensor_count,
                                       timeout_us, plan)
                : Call::code();
}

void* ringd_plan_tensor_data(ringd_plan plan, uint32_t index) {
  const Call client;
  Plan* const found = client ? client->FindPlan(plan) : nullptr;
  return found != nullptr ? found->TensorData(index) : nullptr;
}

int ringd_plan_ready(ringd_plan plan, uint32_t index) {
  const Call client;
  Plan* const found = client ? client->FindPlan(plan) : nullptr;
  return found != nullptr ? found->MarkReady(index) : Call::code();
}

int ringd_plan_flush(ringd_plan plan, uint32_t* count) {
  const Call client;
  Plan* const found = client ? client->FindPlan(plan) : nullptr;
  return found != nullptr ? found->Flush(count) : Call::code();
}

int ringd_plan_wait(ringd_plan plan, int64_t timeout_us) {
  const Call client;
  Plan* const found = client ? client->FindPlan(plan) : nullptr;
  return found != nullptr ? found->Wait(timeout_us) : Call::code();
}

void ringd_set_slices_of(int64_t timeout_us) {
  ringd::client::ArenaClient::SetSlicesOf(timeout_us);
}

int ringd_plan_unregister(ringd_plan plan) {
  const Call client;
  return client ? client->UnregisterPlan(plan) : Call::code();
}

int ringd_round_to_wire(uint32_t dtype, uint32_t wire, void* data, void* residual, uint64_t count) {
  const auto type = static_cast<ringd::DType>(dtype);
  const auto narrow = static_cast<ringd::WireDType>(wire);
  if (narrow == ringd::WireDType::kSame || wire >= ringd::kWireDTypeCount ||
      !ringd::CanNarrow(type, narrow)) {
    return FailFormat(Code::kInvalidArgument, "round_to_wire: %s can't travel as %s",
                      ringd::DTypeName(type), ringd::WireDTypeName(narrow));
  }
  ringd::RoundToWire(type, narrow, data, residual, count);
  return RINGD_OK;
}

int ringd_get_counters(ringd_counters* counters) {
  const Call client;
  return client ? Export(client->counters(), counters) : Call::code();
}
