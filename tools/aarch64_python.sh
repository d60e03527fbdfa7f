#!/bin/sh
# Makes a directory with what `tests/peer/test_aarch64.py` needs to run this package on AArch64 under qemu-aarch64:
# Debian's Python for arm64, the wheels of the packages that compcache needs, and its extension module.
#
#     tools/aarch64_python.sh DIRECTORY
# `make peer` calls it by itself. Needs apt-get, pip, and the ziglang wheel (as a C compiler and a linker), and network access
# to Debian's and Python's registries. Nothing is installed on the system. What is there from an earlier run is made anew.
set -eu
directory=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=$(realpath -s "$(command -v "${PYTHON:-.venv/bin/python}")")
apt="-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
     -o Dir::State::Lists=$directory/lists -o Dir::Cache=$directory/cache -o Dir::State::status=$directory/status"
mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial" "$directory/debs" "$directory/root" "$directory/site"
touch "$directory/status"
mkdir -p "$directory/bin"
apt-get -q $apt update
(cd "$directory/debs" && apt-get -q $apt download python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
    libc6 libstdc++6 libgcc-s1 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libcrypt1 libuuid1)
if ! command -v qemu-aarch64-static >/dev/null && ! command -v qemu-aarch64 >/dev/null; then
    (cd "$directory/debs" && apt-get -q download qemu-user-static && dpkg -x qemu-user-static_*.deb "$directory/host")
    rm "$directory"/debs/qemu-user-static_*.deb
    ln -sf "$directory/host/usr/bin/qemu-aarch64-static" "$directory/bin/qemu-aarch64"
fi
printf '#!/bin/sh\nexec %s -m ziglang ld.lld "$@"\n' "$(command -v "$python")" >"$directory/bin/ld.lld"
chmod +x "$directory/bin/ld.lld"
for package in "$directory"/debs/*.deb; do dpkg -x "$package" "$directory/root"; done
"$python" -m pip install -q --target "$directory/site" --only-binary :all: --implementation cp --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    llvmlite click filelock msgpack platformdirs rich
digest=$("$python" -c "import runpy; print(runpy.run_path('compcache/hit/native_build.py')['source_digest']())")
include=$("$python" -c "import sysconfig; print(sysconfig.get_path('include'))")
rm -rf "$directory/site/compcache"
cp -r compcache "$directory/site/"
rm -f "$directory"/site/compcache/hit/_runtime*.so
"$python" -m ziglang cc -target aarch64-linux-gnu.2.28 -shared -fPIC -O2 -std=gnu11 -fvisibility=hidden "-I$include" \
    "-DCOMPCACHE_SOURCE_DIGEST=\"$digest\"" '-DCOMPCACHE_SOURCES=""' -DCOMPCACHE_LIMITED_API=0x030B0000 \
    compcache/hit/native/*.c -o "$directory/site/compcache/hit/_runtime.abi3.so"
