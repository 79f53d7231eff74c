# As llama-cpp.cmake, for the benchmark's build of llama.cpp's own server: the same compiler flags,
# and the parts that the server is made of.
include("${CMAKE_CURRENT_LIST_DIR}/llama-cpp.cmake")
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_BUILD_TOOLS ON)
set(LLAMA_BUILD_SERVER ON)
