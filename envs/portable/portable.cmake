# Read by CMake after every project() call of the portable build (CMAKE_PROJECT_INCLUDE).
#
# KVGRAFT_FLAGS are the compiler's options. KVGRAFT_MATH is the archive of mathematical functions;
# it is linked whole into every library and stays out of sight of the others, so that nothing is
# left to the system's libm.
include("${CMAKE_CURRENT_LIST_DIR}/../llama-cpp.cmake")

if(NOT KVGRAFT_PORTABLE_SET)
  set(KVGRAFT_PORTABLE_SET ON)  # for the projects below this one, which inherit it all
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${KVGRAFT_FLAGS}>")
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-include;${CMAKE_CURRENT_LIST_DIR}/hide.h>")
  add_link_options("LINKER:--whole-archive,${KVGRAFT_MATH},--no-whole-archive"
                   "LINKER:--exclude-libs,ALL")
endif()

# The functions of kernels.cpp take the places of those of the same names, which get another one.
if(PROJECT_NAME STREQUAL "ggml")
  cmake_language(EVAL CODE
    "cmake_language(DEFER CALL include [[${CMAKE_CURRENT_LIST_DIR}/kernels.cmake]])")
endif()
