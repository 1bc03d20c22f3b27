#include "client/cli/output/line_prefixer.h"

#include "absl/strings/str_cat.h"

namespace ringd::cli {

LinePrefixer::LinePrefixer(int rank) : prefix_(absl::StrCat("[", rank, "] ")) {}

void LinePrefixer::Emit(absl::string_view text, std::string* output) {
  if (!continues_) absl::StrAppend(output, prefix_);
  absl::StrAppend(output, held_, text);
  held_.clear();
}

std::string LinePrefixer::Add(absl::string_view data) {
  std::string output;
  while (!data.empty()) {
    const size_t end = data.find_first_of("\r\n");
    const bool ends = end != absl::string_view::npos;
    const absl::string_view text = data.substr(0, ends ? end : data.size());
    const bool is_bare = text.empty() && held_.empty() && !continues_;
    if (!ends) {
      held_.append(text.data(), text.size());
      after_return_ = false;
      if (held_.size() > kMaxHeldLineBytes) {
        Emit("", &output);
        continues_ = true;
      }
      break;
    }
    const bool is_return = data[end] == '\r';
    // Nothing stands on a bare '\r', and "\r\n" is one line's end.
    if (!(is_bare && (is_return || after_return_))) Emit(text, &output);
    output.push_back(data[end]);
    continues_ = false;
    after_return_ = is_return;
    data.remove_prefix(end + 1);
  }
  return output;
}

std::string LinePrefixer::Finish() {
  std::string output;
  if (!held_.empty() || continues_) {
    Emit("", &output);
    output.push_back('\n');
  } else if (after_return_) {
    output.push_back('\n');
  }
  continues_ = false;
  after_return_ = false;
  return output;
}

}  // namespace ringd::cli
