// Notes of another daemon, as they come from the link.
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/fuzz/fuzz.h"
#include "daemon/engine/names/notes.h"

namespace ringd {
namespace {

constexpr size_t kLimit = 1 << 20;

std::string Encoded(const std::vector<daemon::Note>& notes) {
  std::string all;
  for (const std::string& text : daemon::EncodeNotes(notes, kLimit)) all += text;
  return all;
}

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<daemon::Note> notes;
  for (int kind = 1; kind <= static_cast<int>(daemon::Note::kLastKind); ++kind) {
    daemon::Note note;
    note.kind = static_cast<daemon::Note::Kind>(kind);
    note.node = static_cast<uint16_t>(kind);
    note.id = kind % 2 == 0 ? 0 : 7;
    if (note.HasName() && note.id == 0) note.name = "gradient";
    note.form = "allreduce float32[10] sum";
    note.rank = kind;
    note.key = {3, 4};
    if (note.HasOutcome()) {
      note.outcome.code = arena::Code::kPeerFailed;
      note.outcome.message = "rank 1 ended";
      note.outcome.node = "b";
    }
    notes.push_back(note);
  }
  std::vector<FuzzBytes> seeds;
  for (const daemon::Note& note : notes) {
    const std::string text = Encoded({note});
    seeds.emplace_back(text.begin(), text.end());
  }
  const std::string all = Encoded(notes);
  seeds.emplace_back(all.begin(), all.end());
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ringd::FuzzCheck;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto notes = ringd::daemon::DecodeNotes(text);
  if (!notes.ok()) return 0;
  for (const ringd::daemon::Note& note : *notes) {
    FuzzCheck(note.HasOutcome() != note.outcome.ok(), "a failure that is none");
    FuzzCheck(note.name.size() + note.form.size() <= size, "texts longer than the note");
  }
  const std::string encoded = ringd::Encoded(*notes);
  const auto again = ringd::daemon::DecodeNotes(encoded);
  FuzzCheck(again.ok() && again->size() == notes->size(), "it can't be read again");
  FuzzCheck(ringd::Encoded(*again) == encoded, "it changes when it is passed on");
  return 0;
}
