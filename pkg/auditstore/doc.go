// Package auditstore keeps the log of the runs: events in a hash chain per run,
// rows and index keys to find runs by, checkpoint bodies, and blobs. It knows
// bytes, not runs.
//
// [Log] and [Blobs] are the port; [Store] implements both on one bbolt file. Any
// implementation has to pass the suite in package auditstoretest.
//
// # How it works
//
// One goroutine writes. It takes all requests that wait, at once and without
// delay, and commits them in one transaction: a lone run pays for its own commit
// only, and many runs share each commit. An append is checked against the head
// and the newest epoch of its run inside the transaction, so that one that comes
// too late is dropped without harm to the others. Nobody is answered, and no
// reader sees anything, before the commit is on the disk.
//
// Claims are not written. The file counts its opens, and the count is the upper
// half of each epoch: a process that died has lost all its claims. The first
// append under a claim records the epoch beside the row of the run.
//
// The latest appends are also kept in memory, encoded once for all readers.
// Readers further behind page through the file; a page is copied out and its
// transaction closed before anything is returned.
//
// An error of a commit that may have left something on the disk poisons the
// store: every call fails until the file is opened again, which reads the truth
// anew. A full disk is no such error; it is detected before the commit, or rolled
// back by it.
//
// # Directory
//
//	log.db   the bbolt file, mode 0600
//	format   text: the format version and the id of the log. Written after the
//	         log was created, so that an empty log.db beside it is known as a loss
//	lock     locked while the store is open; holds the process id of the owner
//
// # File format, version 1
//
// Integers are big endian; uvarint is that of encoding/binary. sum is the CRC-32C
// of all that follows it. ‖ joins bytes; run\0 is the run id and a zero byte.
//
//	bucket    key                     value
//	meta      "format"                version, 4 bytes
//	          "id"                    id of the log, 32 hex digits
//	          "digest_key"            32 random bytes
//	          "opens"                 how often the file was opened, 8 bytes
//	          "indexed"               position up to which index is complete, 8 bytes
//	          "open"                  present while open, and after a crash
//	appends   position, 8 bytes       sum4 ‖ header length, 4 bytes ‖ header ‖ public parts; sum4 covers the header
//	private   position, 8 bytes       sum ‖ for each record: uvarint 1 + length of the private part (0: none) ‖ the part ‖
//	                                  uvarint length of the salt ‖ the salt
//	index     run\0 sequence, 8 bytes sum ‖ uvarint position ‖ for each further append: uvarint sequence step ‖
//	                                  uvarint position step
//	rows      run                     sum ‖ newest epoch, 8 bytes ‖ 1 if there is a row, else 0 ‖ the row
//	keys      index key               run
//	bodies    run\0 sequence, 8 bytes sum ‖ body
//	shared    SHA-256 of the value    value
//	blobs     run\0 id\0 n, 4 bytes   sum ‖ chunk
//
//	header:   uvarint length of the run id ‖ run id ‖ uvarint first sequence ‖ uvarint number of records ‖
//	          hash before the first record, 32 bytes ‖ for each record: hash, 32 bytes ‖
//	          uvarint 2·length of the public part + 1 if there was a private part
//
// One value holds one append. Positions count up by one, so that appends and
// private only grow at their right edge. A put per run and append elsewhere would
// rewrite a page for each run in every commit; so the index of the newest appends
// is kept in memory, written in chunks every few thousand appends and on closing,
// and after a crash rebuilt from the appends behind the "indexed" mark.
//
// A private part that the header names and that is not in private has been
// erased. Erased bytes may stay in free pages of the file until those are used
// again.
package auditstore
