// libFuzzer knows files only: RINGD_FUZZ_SEEDS=FOLDER makes a fuzz program write its seeds there,
// and end.
#include <cstdlib>
#include <fstream>
#include <string>

#include "common/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const folder = getenv("RINGD_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const ringd::FuzzBytes& seed : ringd::FuzzSeeds()) {
    std::ofstream file(std::string(folder) + "/seed-" + std::to_string(++number), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) std::exit(1);
  }
  std::exit(0);
}
