// Debian's gRPC, protobuf and Abseil are not instrumented: ThreadSanitizer doesn't see how they
// hand memory from one thread to another, and takes that for a race. Reports with a function of
// theirs in a stack are left out; races between threads of ours are still found.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc\n"
         "race:gpr_\n"
         "race:closure_impl\n"
         "race:timer_list\n"
         "race:tcp_send\n"
         "race:read_action_locked\n"
         "race:encode_scalar\n"
         "race:synchronization_internal\n"
         "race:absl::debian3::Status::\n"
         "race:status_internal\n"
         "race:cord_internal\n"
         "race:Cord::\n"
         "race:absl::debian3::StrCat[\n"
         // Clones that only the optimiser of a distribution's build makes.
         "race:.isra.\n"
         "race:.constprop.\n";
}
// Fewer reports whose second stack is lost, and can't be left out therefore.
extern "C" const char* __tsan_default_options() { return "history_size=7"; }
#endif
