// Command policies enforces the NetworkPolicies of a cluster on one node of the test cluster, with the controller that
// kube-router and k3s have for it: policies NODE KUBECONFIG SERVICES. It needs `iptables` and `ipset`, and takes its
// rules away when it is asked to end.
package main

import (
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: policies NODE KUBECONFIG SERVICES")
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	controller, err := start(os.Args[1], os.Args[2], os.Args[3], stop, &running)
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	close(stop)
	running.Wait()
	controller.Cleanup()
}

func start(node, kubeconfig, services string, stop chan struct{}, running *sync.WaitGroup) (*netpol.NetworkPolicyController, error) {
	client, err := connect(kubeconfig)
	if err != nil {
		return nil, err
	}
	config := options.NewKubeRouterConfig()
	config.HostnameOverride = node
	config.EnableIPv4 = true
	config.ClusterIPCIDRs = []string{services}
	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets)
	if err != nil {
		return nil, err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, namespaces: controller.NamespaceEventHandler, policies: controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	// It waits until somebody takes each heartbeat.
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	running.Add(1)
	go controller.Run(beats, stop, running)
	return controller, nil
}

func connect(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}
