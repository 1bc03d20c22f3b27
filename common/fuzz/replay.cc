// A fuzz target as a test: seeds, corpus, then mutations of both.
//
// RINGD_FUZZ_SEED and RINGD_FUZZ_ROUNDS choose other mutations, as many as fit into
// RINGD_FUZZ_SECONDS. An input that ends the process lies in the test's undeclared outputs
// (bazel-testlogs/.../test.outputs), to be added to the corpus.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "common/fuzz/fuzz.h"
#include "common/fuzz/mutator.h"
#include "gtest/gtest.h"

namespace ringd {
namespace {

constexpr uint64_t kDefaultSeed = 1;

const FuzzBytes* running = nullptr;
char crash_path[4096];

void OnCrash(int signal) {
  const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool kept = fd >= 0 && write(fd, running->data(), running->size()) >= 0;
  const char* const text = kept ? "fuzz: the input is in " : "fuzz: the input is lost: ";
  for (const char* part : {text, static_cast<const char*>(crash_path), "\n"}) {
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, part, strlen(part));
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

void Feed(const FuzzBytes& input) {
  running = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* const text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 0);
}

std::vector<FuzzBytes> Corpus() {
  std::vector<FuzzBytes> corpus;
  const char* const folder = getenv("RINGD_FUZZ_CORPUS");
  if (folder == nullptr || !std::filesystem::is_directory(folder)) return corpus;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

class FuzzTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const outputs = getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    snprintf(crash_path, sizeof(crash_path), "%s/fuzz-input", outputs == nullptr ? "." : outputs);
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, OnCrash);
  }
};

TEST_F(FuzzTest, SeedsAndCorpus) {
  for (const FuzzBytes& input : FuzzSeeds()) Feed(input);
  for (const FuzzBytes& input : Corpus()) Feed(input);
  Feed({});
}

TEST_F(FuzzTest, Mutations) {
  std::vector<FuzzBytes> inputs = FuzzSeeds();
  for (FuzzBytes& input : Corpus()) inputs.push_back(std::move(input));
  const uint64_t seed = Number("RINGD_FUZZ_SEED", kDefaultSeed);
  const uint64_t rounds = Number("RINGD_FUZZ_ROUNDS", 0);
  printf("RINGD_FUZZ_SEED=%llu RINGD_FUZZ_ROUNDS=%llu\n", static_cast<unsigned long long>(seed),
         static_cast<unsigned long long>(rounds));
  FuzzMutator mutator(seed);
  const auto seconds = std::chrono::seconds(Number("RINGD_FUZZ_SECONDS", 1 << 30));
  const auto end = std::chrono::steady_clock::now() + seconds;
  uint64_t round = 0;
  while (round < rounds && std::chrono::steady_clock::now() < end) {
    Feed(mutator.Next(inputs));
    ++round;
  }
  printf("%llu rounds\n", static_cast<unsigned long long>(round));
}

}  // namespace
}  // namespace ringd
