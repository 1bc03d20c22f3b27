#include "daemon/engine/names/notes.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "common/status/macros.h"
#include "daemon/collectives/ring/failure.h"

namespace ringd::daemon {
namespace {

template <typename T>
void Append(T value, std::string* text) {
  static_assert(std::is_integral_v<T>);
  text->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(absl::string_view value, std::string* text) {
  Append(static_cast<uint32_t>(value.size()), text);
  text->append(value.data(), value.size());
}

absl::Status Malformed() { return absl::InvalidArgumentError("it sent a malformed note"); }

template <typename T>
absl::Status Take(absl::string_view* text, T* value) {
  if (text->size() < sizeof(T)) return Malformed();
  std::memcpy(value, text->data(), sizeof(T));
  text->remove_prefix(sizeof(T));
  return absl::OkStatus();
}

absl::Status TakeText(absl::string_view* text, std::string* value) {
  uint32_t bytes = 0;
  RINGD_RETURN_IF_ERROR(Take(text, &bytes));
  if (text->size() < bytes) return Malformed();
  value->assign(text->data(), bytes);
  text->remove_prefix(bytes);
  return absl::OkStatus();
}

std::string EncodeNote(const Note& note) {
  std::string text;
  Append(static_cast<uint8_t>(note.kind), &text);
  Append(note.node, &text);
  if (note.HasName()) {
    Append(note.id, &text);
    if (note.id == 0) {
      AppendText(note.name, &text);
      AppendText(note.form, &text);
    }
  }
  if (note.HasOutcome()) AppendText(EncodeFailure({note.outcome, ""}), &text);
  if (note.kind == Note::Kind::kStarted) {
    Append(note.key.channel, &text);
    Append(note.key.sequence, &text);
    AppendText(note.form, &text);
  } else if (note.kind == Note::Kind::kProbe) {
    AppendText(note.form, &text);
  } else if (!note.IsOfNames()) {
    Append(note.rank, &text);
  }
  return text;
}

absl::StatusOr<Note> TakeNote(absl::string_view* text) {
  Note note;
  uint8_t kind = 0;
  RINGD_RETURN_IF_ERROR(Take(text, &kind));
  if (kind == 0 || kind > static_cast<uint8_t>(Note::kLastKind)) return Malformed();
  note.kind = static_cast<Note::Kind>(kind);
  RINGD_RETURN_IF_ERROR(Take(text, &note.node));
  if (note.HasName()) {
    RINGD_RETURN_IF_ERROR(Take(text, &note.id));
    if (note.id == 0) {
      RINGD_RETURN_IF_ERROR(TakeText(text, &note.name));
      RINGD_RETURN_IF_ERROR(TakeText(text, &note.form));
    }
  }
  if (note.kind == Note::Kind::kStarted) {
    RINGD_RETURN_IF_ERROR(Take(text, &note.key.channel));
    RINGD_RETURN_IF_ERROR(Take(text, &note.key.sequence));
    RINGD_RETURN_IF_ERROR(TakeText(text, &note.form));
  } else if (note.kind == Note::Kind::kProbe) {
    RINGD_RETURN_IF_ERROR(TakeText(text, &note.form));
  } else if (!note.IsOfNames()) {
    RINGD_RETURN_IF_ERROR(Take(text, &note.rank));
  }
  if (!note.HasOutcome()) return note;
  std::string failure;
  RINGD_RETURN_IF_ERROR(TakeText(text, &failure));
  RINGD_ASSIGN_OR_RETURN(
      RingFailureText decoded,
      DecodeFailure(reinterpret_cast<const std::byte*>(failure.data()), failure.size()));
  if (decoded.outcome.ok()) return Malformed();
  note.outcome = std::move(decoded.outcome);
  return note;
}

}  // namespace

std::vector<std::string> EncodeNotes(const std::vector<Note>& notes, size_t limit) {
  std::vector<std::string> texts;
  for (const Note& note : notes) {
    const std::string text = EncodeNote(note);
    if (texts.empty() || texts.back().size() + text.size() > limit) texts.emplace_back();
    texts.back() += text;
  }
  return texts;
}

absl::StatusOr<std::vector<Note>> DecodeNotes(absl::string_view text) {
  std::vector<Note> notes;
  while (!text.empty()) {
    RINGD_ASSIGN_OR_RETURN(Note note, TakeNote(&text));
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace ringd::daemon
