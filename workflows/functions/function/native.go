//go:build !wasip1

package function

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
)

// Main serves the function until the process ends, on the port in PORT or 8080; 0 is one that is free. The first line on
// stdout is the port.
func Main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return http.Serve(listener, http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		status, body := answer(request.URL.RawQuery)
		writer.Header().Set("content-length", strconv.Itoa(len(body)))
		writer.WriteHeader(status)
		writer.Write(body)
	}))
}
