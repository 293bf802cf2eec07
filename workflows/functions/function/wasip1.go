//go:build wasip1

package function

import (
	"strconv"
	"structs"
	"unsafe"
)

type response struct {
	_        structs.HostLayout
	ptr, len uint32
}

//go:wasmimport cwasi context_get
func contextGet(key string, value unsafe.Pointer, capacity uint32, length *uint32) int32

//go:wasmimport cwasi context_set
func contextSet(key, value string) int32

// Blocks that the host owns and the garbage collector must not free.
var blocks = map[uint32][]byte{}

// The last response: the host takes it after cwasi_handle has returned.
var last []byte

func address(bytes []byte) uint32 { return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))) }

//go:wasmexport cwasi_alloc
func cwasiAlloc(size, align uint32) uint32 {
	room := make([]byte, size+align)
	skip := -address(room) % align
	block := room[skip : skip+size : skip+size]
	blocks[address(block)] = block
	return address(block)
}

//go:wasmexport cwasi_free
func cwasiFree(ptr, size, align uint32) { delete(blocks, ptr) }

//go:wasmexport cwasi_handle
func cwasiHandle(payload unsafe.Pointer, payloadLen uint32, out *response) int32 {
	status, body := answer(contextValue("http.query"))
	last = body
	out.ptr, out.len = address(last), uint32(len(last))
	contextSet("http.status", strconv.Itoa(status))
	return 0
}

func contextValue(key string) string {
	const tooSmall = 14 // errno of a value that does not fit
	var length uint32
	value := make([]byte, 256)
	for contextGet(key, unsafe.Pointer(unsafe.SliceData(value)), uint32(len(value)), &length) == tooSmall {
		value = make([]byte, length)
	}
	return string(value[:min(length, uint32(len(value)))])
}

// Main does nothing: the host calls the exports.
func Main() {}
