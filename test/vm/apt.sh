# shellcheck shell=bash
# Sourced by fetch and kernel: Debian packages without touching the machine's own package state.

say() { echo "vm/$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 2; }

archive_key=/usr/share/keyrings/debian-archive-keyring.gpg

# on_debian TOOL...: say what this needs where it cannot work
on_debian() {
	local t
	[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "the bench runs an x86-64 QEMU: it needs a Linux machine of that kind, this is $(uname -sm)"
	for t in apt-get apt-cache dpkg-deb flock "$@"; do
		command -v "$t" >/dev/null || die "needs $t: the bench is fetched as Debian packages, run it on Debian or a container of it"
	done
}

# need TOOL-OR-FILE PACKAGE: install what is missing if that is possible without asking anybody
need() {
	if [ -e "$1" ] || command -v "$1" >/dev/null; then return; fi
	[ "$(id -u)" = 0 ] || die "$1 is missing: apt-get install $2"
	say "installing $2 for $1"
	apt-get -qq update >&2 || die "apt-get update failed; install $2 by hand"
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "$2" >&2 || die "cannot install $2 for $1"
}

# private_apt DIR SUITE...: from now on apt works on these suites of the Debian mirror in the machine's own apt sources
# (MLXVFIO_VM_MIRROR overrides it), with an empty package state; everything it keeps lies in DIR.
private_apt() {
	local a=$1 mirror=${MLXVFIO_VM_MIRROR:-} s
	shift
	if [ -z "$mirror" ]; then
		# the security archive has a path of its own; what is left ends in /debian
		# shellcheck disable=SC2016  # the names in parentheses are apt's
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed 's,/*$,,' | grep '/debian$' | head -n 1) || true
	fi
	[ -n "$mirror" ] || die "no Debian archive in this machine's apt sources: set MLXVFIO_VM_MIRROR to the URL of one"
	mkdir -p "$a/lists/partial" "$a/cache/archives/partial"
	: > "$a/status"
	for s in "$@"; do
		echo "deb [arch=amd64 signed-by=$archive_key] $mirror $s main"
	done > "$a/sources.list"
	cat > "$a/apt.conf" <<-CONF
	Dir::Etc { SourceList "$a/sources.list"; SourceParts "/dev/null"; Preferences "/dev/null"; PreferencesParts "/dev/null"; };
	Dir::State { Lists "$a/lists"; Status "$a/status"; };
	Dir::Cache "$a/cache";
	APT { Architecture "amd64"; Architectures { "amd64"; }; Install-Recommends "false"; Sandbox::User "root"; };
	Acquire { Languages "none"; Retries "3"; };
	Debug::NoLocking "true";
	CONF
	export APT_CONFIG=$a/apt.conf
	apt-get -qq update >&2 || die "cannot read the archive's lists of $*"
}
