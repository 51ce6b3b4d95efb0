#!/usr/bin/env bash
# Verify the systemd units, with this clone's programs in place of the installed ones, and look at what they may do.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v systemd-analyze > /dev/null; then
    echo "systemd-analyze is not here: the units are not checked"
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for unit in *.service; do
    sed "s#/opt/fedskew/.venv/bin#$(cd ../.venv/bin && pwd)#" "$unit" > "$folder/$unit"
done
systemd-analyze verify "$folder"/*.service
for unit in "$folder"/*.service; do
    systemd-analyze security --offline=true --threshold=20 "$unit" | tail -n 1 || { echo "$unit: more than 2.0"; exit 1; }
done
