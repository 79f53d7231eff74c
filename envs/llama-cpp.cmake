# Read by CMake after every project() call of the llama-cpp-python build (CMAKE_PROJECT_INCLUDE).
#
# kvgraft loads libllama and libggml and nothing else. llama-cpp-python forces the "common" helper
# library on through the cache; a plain variable of the same name, set here, takes precedence over
# the cache entry and leaves out more than half of the compile steps.
set(LLAMA_BUILD_COMMON OFF)
set(LLAMA_BUILD_TOOLS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_SERVER OFF)
set(LLAMA_BUILD_APP OFF)
set(LLAVA_BUILD OFF)

# AMX is left out of the native build. Compiled by GCC 12, ggml's AMX path faults at its first
# ldtilecfg and kills the process, on a machine where a standalone program runs the same
# instruction. GCC and Clang let an explicit -mno-amx-* win over -march=native in any order.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT KVGRAFT_AMX_OFF)
  set(KVGRAFT_AMX_OFF ON)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:C,CXX>:-mno-amx-tile;-mno-amx-int8;-mno-amx-bf16>")
endif()

# pip builds in a folder with a random name, which assertions would carry into the libraries; with
# the prefix mapped away two builds by one compiler have the same bytes, hence the same digests.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>")
