#include <cstring>
#include <string>
#include <vector>
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/hash/hash.h"
#include "absl/crc/crc32c.h"
#include "re2/re2.h"
#include "re2/set.h"

static long give(const std::string &text, char *out, long room) {
    long size = (long)text.size() < room ? (long)text.size() : room;
    memcpy(out, text.data(), size);
    return size;
}

static void add_piece(std::string *text, re2::StringPiece piece) { text->append(piece.data() ? piece.data() : "", piece.size()); }

extern "C" long match_expression(const char *in, long size, char *out, long room) {
    absl::string_view all(in, size);
    std::vector<absl::string_view> parts = absl::StrSplit(all, absl::MaxSplits('\n', 1));
    RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(1 << 18);
    RE2 expression(parts[0], options);
    if (!expression.ok()) return give(absl::StrCat("!", expression.error_code(), expression.error()), out, room);
    std::vector<re2::StringPiece> groups(1 + expression.NumberOfCapturingGroups());
    std::string text = absl::StrCat(expression.ProgramSize(), ":", expression.ReverseProgramSize());
    absl::string_view rest = parts.size() > 1 ? parts[1] : "";
    for (auto anchor : {RE2::UNANCHORED, RE2::ANCHOR_START, RE2::ANCHOR_BOTH})
        if (expression.Match(rest, 0, rest.size(), anchor, groups.data(), groups.size()))
            absl::StrAppend(&text, "|", absl::StrJoin(groups, ",", add_piece));
    std::string replaced(rest);
    int count = RE2::GlobalReplace(&replaced, expression, "<\\0>");
    return give(absl::StrCat(text, "#", count, replaced), out, room);
}

extern "C" long match_set(const char *in, long size, char *out, long room) {
    RE2::Options options;
    options.set_log_errors(false);
    RE2::Set set(options, RE2::UNANCHORED);
    std::vector<absl::string_view> parts = absl::StrSplit(absl::string_view(in, size), '\n');
    std::string text, error;
    for (auto part : parts) absl::StrAppend(&text, set.Add(part, &error), error);
    set.Compile();
    std::vector<int> found;
    for (auto part : parts)
        if (set.Match(part, &found)) absl::StrAppend(&text, ";", absl::StrJoin(found, ","));
    return give(text, out, room);
}

extern "C" long text_tools(const char *in, long size, char *out, long room) {
    absl::string_view all(in, size);
    absl::flat_hash_map<std::string, int> counts;
    absl::btree_map<std::string, int> sorted;
    absl::Cord cord;
    for (absl::string_view word : absl::StrSplit(all, absl::ByAnyChar(" \n\t,"), absl::SkipEmpty())) {
        counts[std::string(word)]++, sorted[std::string(word)]++;
        cord.Append(std::string(word.rbegin(), word.rend())), cord.Prepend(absl::CEscape(word));
    }
    std::string text;
    for (auto &item : sorted) {
        double number = 0;
        int64_t whole = 0;
        bool good = absl::SimpleAtod(item.first, &number), integral = absl::SimpleAtoi(item.first, &whole);
        absl::StrAppendFormat(&text, "%s=%d(%d) %g %.17e %x %d%d;", item.first, item.second, counts[item.first], number, number, whole, good, integral);
    }
    absl::Cord part = cord.Subcord(cord.size() / 3, cord.size() / 2);
    absl::StrAppend(&text, std::string(part), " ", absl::Base64Escape(all), " ", static_cast<uint32_t>(absl::ComputeCrc32c(all)), " ", part == cord);
    return give(text, out, room);
}

extern "C" long times(const char *in, long size, char *out, long room) {
    absl::Time time;
    std::string error;
    absl::string_view all(in, size);
    static absl::Mutex mutex;
    static absl::flat_hash_map<int, absl::StatusOr<std::string>> kept;
    absl::MutexLock lock(&mutex);
    uint64_t seed = 0;
    memcpy(&seed, in, size < 8 ? size : 8);
    absl::Duration span = absl::Nanoseconds((int64_t)seed) * 3 / 7;
    time = absl::UnixEpoch() + span;
    std::string text = absl::FormatDuration(span) + absl::FormatTime(time, absl::UTCTimeZone()) + absl::FormatTime("%A %j %E*S", time, absl::FixedTimeZone(seed % 40000));
    absl::Time parsed;
    absl::StrAppend(&text, absl::ParseTime(absl::RFC3339_full, all, &parsed, &error), error);
    int key = seed % 7;
    if (!kept.count(key)) kept.emplace(key, key % 2 ? absl::StatusOr<std::string>(absl::NotFoundError(text)) : absl::StatusOr<std::string>(text));
    absl::Status status = kept.at(key).status();
    status.SetPayload("type", absl::Cord(text));
    return give(absl::StrCat(text, status.ToString(), kept.at(key).ok() ? *kept.at(key) : ""), out, room);
}
