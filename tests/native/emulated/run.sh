#!/usr/bin/env bash
# Runs compare_tables on an emulated processor with AVX-512, AVX-VNNI and AMX, and prints what it says.
#
#   run.sh FOLDER          all tables; FOLDER holds compare_tables, linked statically, and receives a Debian root (1 GB)
#   run.sh FOLDER NAME…    those
#
# Bochs boots Debian's kernel with nothing but the program and busybox. As root, with debootstrap; minutes, most of them
# the first time. What Bochs 3.0 lacks:
# - XFD, by which Linux hands tiles to a process at their first use. setcpuid=324 (word 10, bit 4) has the kernel believe
#   in it, which serves a machine on which one process uses tiles; it needs Linux 6.15 (backports).
# - The sign of signed bytes in products of tiles (as 3.1 does). `correct` changes the four instructions that extend them.
# - The way back from its BIOS with five levels of pages: no5lvl.
set -euo pipefail

folder=$(realpath "$1")
root=$folder/debian
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
tables=${*:2}
bochs_sha256=07fc8c4bee6efb24d690302db0f07159ad5a153c88bca64bb9345a4263ceb5aa   # 3.0+dfsg-1, as it is installed

prepare() {
  rm -rf "$root"
  debootstrap --variant=minbase trixie "$root" "$mirror"
  echo "deb $mirror trixie-backports main" > "$root/etc/apt/sources.list.d/backports.list"
  chroot "$root" apt-get update
  chroot "$root" apt-get install -y --no-install-recommends \
    bochs bochs-term bochsbios vgabios busybox-static isolinux syslinux-common xorriso
  chroot "$root" apt-get install -y --no-install-recommends --download-only -t trixie-backports linux-image-cloud-amd64
  for package in "$root"/var/cache/apt/archives/linux-*.deb; do dpkg -x "$package" "$root/kernel"; done
  correct "$root/usr/bin/bochs-bin"
  mkdir "$root/prepared"
}

# In TDPBSUD, signed by unsigned: movzx of the first operand's bytes becomes movsx, the shift of its last one sar.
correct() {
  echo "$bochs_sha256  $1" | sha256sum --check --quiet
  local change
  for change in 274700:be 274703:be 274728:fa 274733:be; do
    printf "\\x${change#*:}" | dd of="$1" bs=1 seek=$((0x${change%:*})) conv=notrunc status=none
  done
}

# A CD: the loader, the kernel, the program and a first process that runs it.
build_disk() {
  local disk=$root/emulated/disk memory=$root/emulated/memory
  rm -rf "$root/emulated"
  mkdir -p "$disk" "$memory/bin"
  cp "$root/bin/busybox" "$memory/bin/"
  cp "$folder/compare_tables" "$memory/"
  cat > "$memory/init" << END
#!/bin/busybox sh
/compare_tables ${tables:-amx avx512 avx_vnni avx2 scalar}
/bin/busybox sleep 3    # until the serial line has sent what is written
/bin/busybox poweroff -f
END
  chmod +x "$memory/init"
  (cd "$memory" && find . | "$root/bin/busybox" cpio -o -H newc > "$disk/initrd")
  cp "$(find "$root/kernel" -name 'vmlinuz*' -type f | head -1)" "$disk/vmlinuz"
  cp "$root/usr/lib/ISOLINUX/isolinux.bin" "$root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$disk/"
  cat > "$disk/isolinux.cfg" << END
DEFAULT linux
LABEL linux
KERNEL vmlinuz
APPEND initrd=initrd console=ttyS0 quiet mitigations=off no5lvl setcpuid=324
END
  chroot "$root" xorriso -as mkisofs -quiet -o /emulated/disk.iso -b isolinux.bin -c boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table /emulated/disk
}

emulate() {
  cat > "$root/emulated/bochsrc" << END
display_library: rfb, options="timeout=0"
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=sapphire_rapids, ips=50000000
memory: guest=512, host=512
ata0-master: type=cdrom, path=/emulated/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=/emulated/console
panic: action=fatal
log: /emulated/bochs.log
END
  # Switching the machine off is an error to Bochs.
  chroot "$root" timeout 7200 bochs -q -f /emulated/bochsrc < /dev/null > "$root/emulated/output" 2>&1 || true
}

[ -d "$root/prepared" ] || prepare
build_disk
emulate
tr -d '\r' < "$root/emulated/console"
grep -q '^0 failures' "$root/emulated/console"
