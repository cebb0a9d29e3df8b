#include <cstdio>

#ifdef FAKE_BROKEN
int broken = this_is_not_declared;
#endif

int main() {
    std::printf("version: 0.0.1-fake (build %d, commit %s)\n", BUILD_NUMBER, BUILD_COMMIT);
    return 0;
}
