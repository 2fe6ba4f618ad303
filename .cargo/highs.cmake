# The HiGHS solver in fewer, larger units: it takes half the processor time to compile.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12 CACHE STRING "")
# Tests solve small programs: there, compiling it with all optimizations takes longer than they save.
if("$ENV{PROFILE}" STREQUAL "debug")
    set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
endif()
