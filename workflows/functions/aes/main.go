// Encrypts and decrypts random letters, each round with AES-128 in CFB mode: the text and what each round made of it.
package main

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"

	"cwasi.dev/functions/function"
)

const (
	key           = "0123456789abcdef"
	letters       = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	lengthMax     = 1 << 20
	iterationsMax = 100_000
)

func init() { function.Export(answer) }

func main() { function.Main() }

func answer(query url.Values) (string, error) {
	length, err := function.Number(query, "length", lengthMax)
	if err != nil {
		return "", err
	}
	iterations, err := function.Number(query, "iterations", iterationsMax)
	if err != nil {
		return "", err
	}
	random, err := function.Random(query)
	if err != nil {
		return "", err
	}
	block, err := aes.NewCipher([]byte(key))
	if err != nil {
		return "", err
	}
	text := make([]byte, length)
	for i := range text {
		text[i] = letters[random.IntN(len(letters))]
	}
	var body strings.Builder
	fmt.Fprintf(&body, "%s\n", text)
	for range iterations {
		secret := encrypt(block, text, random)
		clear, err := decrypt(block, secret)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&body, "%s %s\n", secret, clear)
	}
	return body.String(), nil
}

// base64 of the random initialization vector and the text.
func encrypt(block cipher.Block, text []byte, random *rand.Rand) string {
	secret := make([]byte, aes.BlockSize+len(text))
	vector := secret[:aes.BlockSize]
	for i := range vector {
		vector[i] = byte(random.Uint32())
	}
	cipher.NewCFBEncrypter(block, vector).XORKeyStream(secret[aes.BlockSize:], text)
	return base64.URLEncoding.EncodeToString(secret)
}

func decrypt(block cipher.Block, secret string) ([]byte, error) {
	bytes, err := base64.URLEncoding.DecodeString(secret)
	if err != nil {
		return nil, err
	}
	vector, text := bytes[:aes.BlockSize], bytes[aes.BlockSize:]
	cipher.NewCFBDecrypter(block, vector).XORKeyStream(text, text)
	return text, nil
}
