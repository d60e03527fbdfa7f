#include <cstring>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>
#include "pugixml.hpp"

struct Counter {
    long calls = 100;
    ~Counter() { calls = -1; }
};

static thread_local Counter counter;
static std::once_flag once;
static int first_calls;

static std::string &history() {
    static std::string text = "calls:";
    return text;
}

static long give(const std::string &text, char *out, long room) {
    long size = (long)text.size() < room ? (long)text.size() : room;
    memcpy(out, text.data(), size);
    return size;
}

// The input is an expression, a newline and a document. The other module throws some of the exceptions that are caught here.
extern "C" long query_document(const char *in, long size, char *out, long room) {
    std::call_once(once, [] { first_calls++; });
    counter.calls++;
    std::string all(in, size), expression = all.substr(0, all.find('\n')), text = all.substr(all.find('\n') + 1);
    std::ostringstream result;
    try {
        pugi::xml_document document;
        pugi::xml_parse_result parsed = document.load_buffer(text.data(), text.size());
        result << parsed.description() << '@' << parsed.offset << ';';
        if (!parsed) throw std::runtime_error("cannot be parsed");
        pugi::xpath_query query(expression.c_str());
        for (const pugi::xpath_node &node : document.select_nodes(query))
            result << node.node().path() << '=' << node.node().child_value() << node.attribute().value() << ';';
        result << pugi::xpath_query("sum(//@*[number() = number()])").evaluate_number(document) << ';';
        document.save(result, " ");
    } catch (const pugi::xpath_exception &error) {
        result << "expression: " << error.what() << '@' << error.result().offset << typeid(error).name();
    } catch (const std::exception &error) {
        result << "document: " << error.what() << typeid(error).name();
    }
    {
        static std::mutex guard;
        std::lock_guard<std::mutex> held(guard);
        history() += 'q';
    }
    result << ' ' << first_calls;
    return give(result.str(), out, room);
}

// Each thread has a document and a counter of its own.
extern "C" long query_in_threads(const char *in, long size, char *out, long room) {
    std::vector<std::string> results(4);
    std::vector<std::thread> threads;
    for (std::string &result : results)
        threads.emplace_back([&result, in, size] {
            std::vector<char> answer(100000);
            std::string text;
            for (int round = 0; round < 2; round++) text.assign(answer.data(), query_document(in, size, answer.data(), answer.size()));
            result = text + ' ' + std::to_string(counter.calls);
        });
    for (std::thread &thread : threads) thread.join();
    std::string all;
    for (const std::string &result : results) all += result + "\n";
    return give(all, out, room);
}
