#include "worker/command.h"

#include <sys/stat.h>

#include <fstream>

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

using Words = std::vector<std::string>;

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/command-" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    mkdir(directory_.c_str(), 0755);
    mkdir((directory_ + "/bin").c_str(), 0755);
    Write("bin/tool", 0755);
    Write("bin/python3", 0755);
    Write("bin/data", 0644);
    Write("train.py", 0644);
  }
  void Write(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    chmod(path.c_str(), mode);
  }
  std::string Check(const Words& command, const std::string& path = "bin") {
    return std::string(CheckCommand(command, {{"PATH", path}}, directory_).message());
  }
  std::string directory_;
};

TEST(PythonScript, FirstNonOptionArgument) {
  EXPECT_EQ(PythonScript({"python", "train.py", "--lr", "1"}), "train.py");
  EXPECT_EQ(PythonScript({"/opt/bin/python3.11", "-u", "-B", "t.py"}), "t.py");
  EXPECT_EQ(PythonScript({"python3", "-W", "ignore", "-X", "dev", "t.py"}), "t.py");
  EXPECT_EQ(PythonScript({"python3", "-Wignore", "-Xdev", "t.py"}), "t.py");
  EXPECT_EQ(PythonScript({"python3", "-uW", "ignore", "t.py"}), "t.py");
  EXPECT_EQ(PythonScript({"python3", "--check-hash-based-pycs", "always", "t.py"}), "t.py");
  EXPECT_EQ(PythonScript({"python3", "-u", "--", "t.py"}), "t.py");
}

TEST(PythonScript, NoScript_Empty) {
  EXPECT_EQ(PythonScript({"python", "-c", "print(1)"}), "");
  EXPECT_EQ(PythonScript({"python", "-m", "pytest", "x"}), "");
  EXPECT_EQ(PythonScript({"python", "-um", "pytest"}), "");
  EXPECT_EQ(PythonScript({"python", "-"}), "");
  EXPECT_EQ(PythonScript({"python"}), "");
  EXPECT_EQ(PythonScript({"python", "--version"}), "");
  EXPECT_EQ(PythonScript({"python", "-W"}), "");
  EXPECT_EQ(PythonScript({"python-config", "train.py"}), "");
  EXPECT_EQ(PythonScript({"bash", "train.sh"}), "");
  EXPECT_EQ(PythonScript({}), "");
}

TEST_F(CommandTest, RelativePathEntry_CountsFromTheDirectory) {
  EXPECT_EQ(*FindProgram("tool", {{"PATH", "/nowhere:bin"}}, directory_), directory_ + "/bin/tool");
  EXPECT_EQ(*FindProgram("./bin/tool", {}, directory_), directory_ + "/./bin/tool");
  EXPECT_EQ(*FindProgram("sh", {{"PATH", "/nowhere:/bin"}}, directory_), "/bin/sh");
}

TEST_F(CommandTest, NoSuchProgram_NamedWithPath) {
  EXPECT_EQ(Check({"pyton"}, "bin:/usr"), "pyton: no such program (PATH=bin:/usr)");
  EXPECT_EQ(Check({"./pyton"}), "./pyton: no such program (in " + directory_ + ")");
}

TEST_F(CommandTest, NotExecutable_Named) {
  EXPECT_EQ(Check({"data"}), directory_ + "/bin/data: not an executable file");
  EXPECT_EQ(Check({"bin/data"}), "bin/data: not an executable file (in " + directory_ + ")");
  EXPECT_EQ(Check({"./bin"}), "./bin: not an executable file (in " + directory_ + ")");
}

TEST_F(CommandTest, MissingScript_Named) {
  EXPECT_EQ(Check({"python3", "-u", "trian.py"}), "trian.py: no such file (in " + directory_ + ")");
  EXPECT_EQ(Check({"python3", "train.py"}), "");
  EXPECT_EQ(Check({"python3", "-m", "trian"}), "");
  EXPECT_EQ(Check({"python3", "bin"}), "bin: no such file (in " + directory_ + ")");
}

TEST_F(CommandTest, MissingDirectory_Named) {
  EXPECT_EQ(CheckCommand({"sh"}, {}, "/no/where").message(),
            "/no/where: no such directory (--cwd)");
  EXPECT_EQ(CheckCommand({"sh"}, {}, directory_ + "/train.py").message(),
            directory_ + "/train.py: not a directory (--cwd)");
}

}  // namespace
}  // namespace ringd::worker
