// How the stand-in is set up, and how it says what is wrong.
#include "standin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sstream>

namespace standin {

// Never destroyed: the process may end while other threads still call.
State& state() {
    static State* one = new State;
    return *one;
}

static void line(const char* format, va_list arguments) {
    char text[1024];
    const int head = snprintf(text, sizeof text, "libcuda stand-in: ");
    int n = vsnprintf(text + head, sizeof text - static_cast<size_t>(head) - 2, format, arguments);
    n = head + n < static_cast<int>(sizeof text) - 2 ? head + n : static_cast<int>(sizeof text) - 2;
    text[n] = '\n';
    // one write: several processes share a terminal
    if (write(2, text, static_cast<size_t>(n) + 1) < 0) abort();
}

void note(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
}

void fault(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
    abort();
}

static std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, by);)
        if (!part.empty()) parts.push_back(part);
    return parts;
}

static uint64_t number(const std::string& key, const std::string& value) {
    char* end = nullptr;
    const uint64_t n = strtoull(value.c_str(), &end, 10);
    if (value.empty() || *end != 0)
        fault("setting %s: expected a number, got '%s'", key.c_str(), value.c_str());
    return n;
}

static void set_execute(Settings& s, const std::string& value) {
    if (value == "eager") {
        s.execute = Execute::eager;
    } else if (value == "late") {
        s.execute = Execute::late;
    } else if (value.rfind("random:", 0) == 0) {
        s.execute = Execute::at_random;
        s.seed = number("execute", value.substr(7));
    } else {
        fault("setting execute: expected eager, late or random:SEED, got '%s'", value.c_str());
    }
}

// Of devices: a value for each of them, or the last for all that follow.
static bool set_devices(Settings& s, const std::string& key, const std::string& value) {
    const std::vector<std::string> values = split(value, ',');
    for (size_t i = 0; i < s.devices.size() && !values.empty(); ++i) {
        DeviceSettings& device = s.devices[i];
        const std::string& own = values[i < values.size() ? i : values.size() - 1];
        if (key == "capability") {
            if (sscanf(own.c_str(), "%d.%d", &device.major, &device.minor) != 2)
                fault("setting capability: expected 9.0, got '%s'", own.c_str());
        } else if (key == "memory") {
            device.memory = number(key, own);
            device.free = device.memory;
        } else if (key == "free") {
            device.free = number(key, own);
        } else if (key == "integrated") {
            device.integrated = number(key, own) != 0;
        } else if (key == "broken") {
            device.broken = number(key, own) != 0;
        } else {
            return false;
        }
    }
    return true;
}

static void set(Settings& s, const std::string& key, const std::string& value) {
    if (key == "driver") {
        s.driver = static_cast<int>(number(key, value));
    } else if (key == "devices") {
        s.devices.resize(number(key, value));
    } else if (key == "execute") {
        set_execute(s, value);
    } else if (key == "pinned") {
        s.pinned = number(key, value);
    } else if (key == "fail") {
        const std::vector<std::string> parts = split(value, ':');
        if (parts.size() != 2) fault("setting fail: expected CALL:CODE, got '%s'", value.c_str());
        if (parts[0][0] >= '0' && parts[0][0] <= '9') {
            s.fail_call = number(key, parts[0]);
        } else {
            s.fail_name = parts[0];
        }
        s.fail_code = static_cast<int>(number(key, parts[1]));
    } else if (key == "taken") {
        const std::vector<std::string> parts = split(value, ':');
        if (parts.size() != 2)
            fault("setting taken: expected CALLS:BYTES, got '%s'", value.c_str());
        s.taken_after = number(key, parts[0]);
        s.taken = number(key, parts[1]);
    } else if (key == "trace") {
        s.trace = number(key, value) != 0;
    } else if (key == "kernel_fails") {
        s.kernel_fails = number(key, value);
    } else if (key == "kernel_idles") {
        s.kernel_idles = number(key, value);
    } else if (!set_devices(s, key, value)) {
        fault("there is no setting '%s'", key.c_str());
    }
}

// Words of KEY=VALUE; those that are not named are as at first. Calls are counted from here.
void configure(const char* text) {
    State& st = state();
    st.settings = Settings();
    for (const std::string& word : split(text, ' ')) {
        const size_t at = word.find('=');
        if (at == std::string::npos) fault("settings: expected KEY=VALUE, got '%s'", word.c_str());
        set(st.settings, word.substr(0, at), word.substr(at + 1));
    }
    st.random.seed(st.settings.seed);
    st.calls = 0;
    st.launches_run = 0;
    st.free_asked = 0;
    st.names.clear();
}

}  // namespace standin
