# Creates, starts and stops one PostgreSQL server on behalf of the process at the other end of standard input, an errand
# a line, and answers each with its exit status. When that process closes its end, or dies, everything is removed.
# Errands run one after the other, so nothing is still being created when the removal begins.
#
# `copy` makes a standby of the server at the port that follows it on the line.
#
# $1: the cluster's folder   $2: the folder of PostgreSQL's programs

trap '' HUP INT PIPE TERM
umask 077
data=$1/data log=$1/log

while read -r errand source; do
    case $errand in
        create)
            "$2/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --locale=C \
                --no-sync --no-instructions
            ;;
        copy)
            "$2/pg_basebackup" --pgdata="$data" --host=127.0.0.1 --port="$source" --username=postgres --no-password \
                --checkpoint=fast --wal-method=stream --write-recovery-conf --no-sync
            ;;
        start) "$2/pg_ctl" start --pgdata="$data" --log="$log" --wait --timeout=60 ;;
        stop) "$2/pg_ctl" stop --pgdata="$data" --mode=fast --wait --timeout=60 ;;
        crash) "$2/pg_ctl" stop --pgdata="$data" --mode=immediate --wait --timeout=60 ;;
    esac </dev/null >>"$log" 2>&1
    echo $?
done

"$2/pg_ctl" stop --pgdata="$data" --mode=immediate --wait --timeout=60 >/dev/null 2>&1
# A server that was itself killed leaves processes behind that end within moments.
for pause in 0.1 1 5; do
    rm -rf "$1" 2>/dev/null && break
    sleep $pause
done
